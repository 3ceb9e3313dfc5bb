"""Where proposals come from when nothing prepared serves: the settings' fallbacks, made for one engine."""

from __future__ import annotations

from collections.abc import Iterable

from ssd_runtime.hooks.kinds import Proposer, Remembering
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.memory.history import history_codecs
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.settings.schema import EngineSettings, NamedPart
from ssd_runtime.speculation.fallback import DraftSource, ProposerSource, ShadowSource, Source
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.memory import Memories

PROPOSER_SECONDS = 0.25
OURS = "ssd_plugins."


class Sources:
    """Makes sources. `proposers`: the plugins among them, each with a thread of its own."""

    def __init__(self, settings: EngineSettings, registries: Registries, vocab_size: int) -> None:
        self.proposers: list[GuardedProposer] = []
        self._settings = settings
        self._registries = registries
        self._vocab_size = vocab_size

    def fallback(self, memories: Memories, drafting: DraftSource | None) -> list[Source]:
        """The configured fallbacks, in order."""
        return [self._source(part, memories, drafting) for part in self._settings.fallback]

    def lookups(self, fallback: Iterable[Source]) -> list[Source]:
        """Those of them that need no model, or the default ones: for the low-latency mode."""
        lookups: list[Source] = [source for source in fallback if isinstance(source, ProposerSource)]
        return lookups or [self._proposer(part) for part in EngineSettings().fallback]

    def remember(self, sequence: TokenSequence) -> None:
        """A request was answered to its end: tell the proposers that keep texts. For the engine's loop."""
        for proposer in self.proposers:
            proposer.remember(sequence.token_ids, sequence.num_prompt)

    def _source(self, part: NamedPart, memories: Memories, drafting: DraftSource | None) -> Source:
        if part.name == ShadowSource.name:
            return ShadowSource(memories.recall)
        if part.name == DraftSource.name and drafting is not None:
            return drafting
        return self._proposer(part)

    def _proposer(self, part: NamedPart) -> ProposerSource:
        proposer = self._registries.proposers.get(part.name)(**part.options)
        guarded = GuardedProposer(
            proposer,
            vocab_size=self._vocab_size,
            time_limit=PROPOSER_SECONDS,
            trusted=_is_ours(proposer) and not isinstance(proposer, Remembering),
            name=part.name,
            codec=history_codecs()[self._settings.history_codec],
        )
        self.proposers.append(guarded)
        return ProposerSource(part.name, guarded)


def _is_ours(proposer: Proposer) -> bool:
    """Whether it comes with the package, and so takes microseconds, less than the way to a thread."""
    return type(proposer).__module__.startswith(OURS)

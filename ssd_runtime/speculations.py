"""Whatever guesses, as the settings say: made at the start, and anew when they change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import structlog

from ssd_runtime.clock import Clock
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.drafts import Draft, make_draft
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.roles import Role
from ssd_runtime.settings.schema import Settings
from ssd_runtime.sources import Sources
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import DraftSource, ShadowSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.memory import Memories
from ssd_runtime.speculation.mode_control import make_controller
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.types import Mode

log = structlog.get_logger(__name__)

if TYPE_CHECKING:
    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.models.loading import LoadedModel

PATIENCE_SECONDS = 0.5
"""How long a round waits for a draft that should have stopped; twice, see `DraftLane`."""
PATIENCE_VERIFICATIONS = 4
JOIN_SECONDS = 10.0

LoadDraft = Callable[[Registries, str, str, "Transfer"], "LoadedModel"]
"""`load(registries, name, quantization, transfer)`: a model for the draft's lane."""


@dataclass(slots=True)
class Speculation:
    """The speculator, and what it asks: a draft on its lane, and proposers on threads of their own."""

    speculator: Speculator
    sources: Sources
    draft: Draft | None
    lane: DraftLane | None
    prefix_stats: PrefixStats = field(default_factory=PrefixStats)
    _restarts_before: int = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of the draft's weights."""
        return self.draft.weight_bytes if self.draft is not None else 0

    @property
    def num_restarts(self) -> int:
        """Fresh lanes in place of drafts' that failed."""
        return self._restarts_before + (self.lane.num_restarts if self.lane is not None else 0)

    def status(self) -> dict[str, str]:
        """What the draft and each proposer say of themselves, by name."""
        draft = {"draft": self.lane.status} if self.lane is not None else {}
        return draft | {str(proposer.name): proposer.status for proposer in self.sources.proposers}

    def succeed(self, before: Speculation) -> None:
        """Take the place of another one: what was counted so far is counted on."""
        self.speculator.modes.rounds.update(before.speculator.modes.rounds)
        self.speculator.num_branches += before.speculator.num_branches
        self.prefix_stats.count(before.prefix_stats.queries, before.prefix_stats.hits)
        self._restarts_before = before.num_restarts

    def close(self) -> None:
        """End every thread; does not wait."""
        for thread in _threads(self.lane, self.sources):
            thread.close()

    def join(self) -> None:
        """Wait for the threads to end; what hangs is not waited for."""
        for thread in _threads(self.lane, self.sources):
            thread.join(JOIN_SECONDS)


class SpeculationMaker:
    """Makes them for one engine: its target, the draft's lane and places stay. Blocks while models load."""

    def __init__(
        self,
        target: LoadedModel,
        role: Role,
        load: LoadDraft,
        clock: Clock,
        on_record: Callable[[CommandRecord], None] | None,
        *,
        apart: bool,
    ) -> None:
        """`role`: the draft's. `on_record` hears of its lane's commands. apart: see `Places.are_apart`."""
        self._target = target
        self._role = role
        self._load_draft = load
        self._clock = clock
        self._on_record = on_record
        self._apart = apart
        self._known: dict[tuple[str, str], LoadedModel] = {}

    def make(self, settings: Settings, registries: Registries, context: int) -> Speculation:
        """What `settings` say, for requests of up to `context` tokens, with its threads running.

        A draft whose model and weight format are those of the last time is not loaded again. Raises
        `ConfigError`, `ModelError`, and what a plugin's factory raises; then nothing runs.
        """
        draft, self._known = self._draft(settings, registries)
        if draft is None and settings.scheduler.policy in (Mode.SPECULATIVE, Mode.SSD):
            log.warning(
                "without a draft every round is plain decoding", policy=settings.scheduler.policy.value
            )
        budget = BudgetChooser(settings.engine.branch_budget, settings.engine.speculative_length)
        lane = None if draft is None else self._start(draft, budget)
        sources = Sources(settings.engine, registries, self._target.config.vocab_size)
        try:
            max_context = min(context, draft.max_context) if draft is not None else context
            speculator = self._speculator(settings, lane, sources, budget, max_context)
        except BaseException:
            for thread in _threads(lane, sources):
                thread.close()
            raise
        stats = draft.prefix_stats if draft is not None else PrefixStats()
        return Speculation(speculator, sources, draft, lane, stats)

    def _draft(
        self, settings: Settings, registries: Registries
    ) -> tuple[Draft | None, dict[tuple[str, str], LoadedModel]]:
        """The draft, and the model that it is, if it is one."""
        loaded: dict[tuple[str, str], LoadedModel] = {}
        if settings.scheduler.policy is Mode.AUTOREGRESSIVE:
            return None, loaded
        transfer = self._role.transfer

        def load(name: str, quantization: str) -> LoadedModel:
            key = (name, quantization)
            known = self._known.get(key)
            loaded[key] = known if known is not None else self._load_draft(registries, *key, transfer)
            return loaded[key]

        return make_draft(settings, registries, self._target, load, self._clock, transfer), loaded

    def _start(self, draft: Draft, budget: BudgetChooser) -> DraftLane:
        return DraftLane(
            self._role.starting(draft.worker, draft.new_worker, self._clock, self._on_record, draft.reserve),
            name=draft.name,
            patience=partial(_patience, budget),
            clock=self._clock,
        )

    def _speculator(
        self,
        settings: Settings,
        lane: DraftLane | None,
        sources: Sources,
        budget: BudgetChooser,
        max_context: int,
    ) -> Speculator:
        engine = settings.engine
        drafting = DraftSource(lane, max_context) if lane is not None else None
        memories = Memories(caching=any(part.name == ShadowSource.name for part in engine.fallback))
        fallback = sources.fallback(memories, drafting)
        controller = make_controller(
            settings.scheduler.policy,
            threshold=engine.fallback_batch_threshold,
            max_batch_size=engine.max_batch_size,
        )
        return Speculator(
            draft=lane,
            drafting=drafting,
            fallback=fallback,
            lookups=sources.lookups(fallback) if lane is not None else (),
            memories=memories,
            modes=Modes(controller, has_draft=lane is not None),
            budget=budget,
            length=engine.speculative_length,
            max_context=max_context,
            clock=self._clock,
            reads_ahead=self._apart,
        )


def _threads(lane: DraftLane | None, sources: Sources) -> list[DraftLane | GuardedProposer]:
    return [*([lane] if lane is not None else []), *sources.proposers]


def _patience(budget: BudgetChooser) -> float:
    """Where verifying is slow, so is drafting: big models are not hanging."""
    return max(PATIENCE_SECONDS, PATIENCE_VERIFICATIONS * budget.verification_seconds)

"""Two rounds of the real engine in every way that the random numbers of `rejection` can fall.

The words of a decision are replaced by the middles of the parts of a grid, one free choice for each
*key* (stream, position, line): where two decisions share a key they share their luck, as they would in
earnest. All probabilities are whole parts of the grids, so the enumeration is exact. What two rounds leave
open of the first tokens is completed by the target's own probabilities; whoever proposes, the result must
be the target's distribution.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_kernels import streams
from ssd_kernels.streams import ACCEPT_STREAM, BONUS_STREAM, PROPOSAL_STREAM, RESIDUAL_STREAM
from ssd_plugins.ngram import NgramProposer
from ssd_plugins.rejection import RejectionSampler
from ssd_plugins.suffix import SuffixProposer
from ssd_runtime.device.lane import Worker
from ssd_runtime.hooks.kinds import Proposer
from ssd_runtime.messages import Draw, ForwardRow, Rules, Verdict
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.sampling import chance, ratio
from ssd_runtime.sampling.following import Followers
from ssd_runtime.sampling.grammar import GrammarMask
from ssd_runtime.sampling.odds import Odds, certain
from ssd_runtime.speculation.commands import BuildCommand
from ssd_runtime.speculation.fallback import ProposerSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.lines import Drafting, Pick
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.rig import Rig, draft_worker
from ssd_runtime.testing.scripted import CountedStop, ScriptedDraft
from ssd_runtime.testing.toy import ToyTokenizer
from ssd_runtime.types import Mode, Request, SamplingParams

VOCAB = 5
Table = Sequence[Sequence[int]]
Q: Table = [(1, 1, 0, 0, 0), (0, 1, 1, 0, 0), (1, 0, 0, 1, 0), (0, 0, 1, 1, 0), (0, 1, 0, 0, 0)]
"""The draft's halves: what follows each token."""
PROMPT = (3, 0, 1, 2, 3, 4)
"""4 stands here only, and 1 follows it for certain."""
UNRULED_Q: Table = [(1, 1, 2, 0, 0), (0, 1, 2, 1, 0), (1, 0, 2, 1, 0), (1, 0, 2, 1, 0), (0, 1, 0, 0, 0)]
COMPARED = 3
NO_LINE = Draw(0, 1.0).line


@dataclass(frozen=True)
class Setting:
    """The target's quarters, what follows each token; parts of each stream's grid, fine enough for them.

    has_grammar: one forbids the token 2, of which the target thinks much, and the draft in `UNRULED_Q`.
    """

    p: Table
    sizes: dict[int, int]
    has_grammar: bool = False

    @property
    def unruled_p(self) -> Table:
        """What the model itself says."""
        return [(*row[:2], 3, *row[3:]) for row in self.p] if self.has_grammar else self.p


DRAWN = Setting(
    [(1, 1, 1, 1, 0), (2, 1, 1, 0, 0), (0, 1, 1, 2, 0), (2, 2, 0, 0, 0), (0, 4, 0, 0, 0)],
    {PROPOSAL_STREAM: 2, ACCEPT_STREAM: 2, RESIDUAL_STREAM: 2, BONUS_STREAM: 4},
)
CERTAIN = Setting(
    [(1, 1, 1, 1, 0), (2, 0, 2, 0, 0), (0, 2, 0, 2, 0), (2, 2, 0, 0, 0), (0, 4, 0, 0, 0)],
    {PROPOSAL_STREAM: 2, ACCEPT_STREAM: 4, RESIDUAL_STREAM: 6, BONUS_STREAM: 4},
)
RULED = Setting(
    [(1, 2, 0, 1, 0), (2, 1, 0, 1, 0), (2, 2, 0, 0, 0), (1, 1, 0, 2, 0), (0, 4, 0, 0, 0)],
    {PROPOSAL_STREAM: 4, ACCEPT_STREAM: 2, RESIDUAL_STREAM: 2, BONUS_STREAM: 4},
    has_grammar=True,
)
"""For drafts that are drawn, for those that are certain, and for those that a grammar rules."""


class Words:
    """The middles of grids: one after another every combination that a run asks for."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.is_last_round = False
        self._sizes = sizes
        self._known: dict[Hashable, int] = {}
        self._path: list[list[int]] = []

    def next_run(self) -> bool:
        """Make ready for the next combination, if there is one."""
        if self._known:
            while self._path and self._path[-1][0] + 1 == self._path[-1][1]:
                self._path.pop()
            if not self._path:
                return False
            self._path[-1][0] += 1
        self._known, self.is_last_round = {}, False
        return True

    @property
    def weight(self) -> float:
        """The probability of the run that was."""
        weight = 1.0
        for _, size in self._path:
            weight /= size
        return weight

    def of_position(self, seed: int, stream: int, position: int) -> int:
        """Instead of `position_word`."""
        return self._word((stream, position), 1 if position == len(PROMPT) else self._sizes[stream])

    def of_proposal(self, seed: int, line: tuple[int, int], position: int) -> int:
        """Instead of `proposal_word`; nobody sees what reading draws, nor what the last round builds."""
        unseen = line == NO_LINE or (self.is_last_round and line[1] > line[0])
        return self._word((line, position), 1 if unseen else self._sizes[PROPOSAL_STREAM])

    def _word(self, key: Hashable, size: int) -> int:
        if key not in self._known:
            if len(self._known) == len(self._path):
                self._path.append([0, size])
            choice, size = self._path[len(self._known)]
            self._known[key] = ((2 * choice + 1) << 64) // (2 * size)
        return self._known[key]


class Chain:
    """A decoder that looks at the last token only."""

    config = SimpleNamespace(vocab_size=VOCAB)

    def new_kv(self, *sizes: int) -> None:
        """Nothing is kept."""

    def __init__(self, p: Table) -> None:
        self._p = p

    def forward(self, rows: Sequence[ForwardRow], kv: None) -> Tensor:
        """The logarithms of the quarters."""
        read = [token for row in rows for token in list(row.token_ids)[len(row.token_ids) - row.num_logits :]]
        return torch.tensor([self._p[token] for token in read], dtype=torch.float32).log()


class Likeliest:
    """A draft at temperature 0: its own best token, again and again."""

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """The first of the largest of `Q`."""
        text = list(token_ids)
        for _ in range(k):
            text.append(Q[text[-1]].index(max(Q[text[-1]])))
        return text[len(token_ids) :]


class Cut:
    """A worker whose builds end after some passes."""

    def __init__(self, worker: Worker, passes: int) -> None:
        self._worker = worker
        self._passes = passes

    def execute(self, command: Any) -> Any:
        """As a verdict would stop it."""
        if isinstance(command, BuildCommand):
            command = command._replace(stop=CountedStop(self._passes))
        return self._worker.execute(command)


class NoTwos:
    """A grammar without the token 2, as `llguidance.LLMatcher` would have it."""

    def validate_tokens(self, tokens: list[int]) -> int:
        """How many of them may come."""
        return next((i for i, token in enumerate(tokens) if token == 2), len(tokens))

    def consume_token(self, sampled_token: int) -> bool:
        """Nothing changes by it."""
        return True

    def rollback(self, num_tokens: int) -> bool:
        """Nothing has changed."""
        return True

    def compute_bitmask(self) -> bytes:
        """A bit for each token that may come."""
        return bytes([0b11011])

    def is_error(self) -> bool:
        """Never."""
        return False

    def get_error(self) -> str:
        """There is none."""
        return ""


def model(budget: int, sampler: RejectionSampler, q: Table = Q) -> Worker:
    draft = ScriptedDraft(lambda ids: torch.tensor(q[ids[-1]], dtype=torch.float32).log(), vocab_size=VOCAB)
    return draft_worker(draft, budget, VOCAB, sampler)


def proposing(proposer: Proposer) -> Worker:
    return ProposerWorker(proposer, VOCAB)


def source(proposer: Proposer) -> ProposerSource:
    guarded = GuardedProposer(proposer, vocab_size=VOCAB, time_limit=1.0, trusted=True)
    return ProposerSource("proposer", guarded)


Kind = Callable[[RejectionSampler], tuple[Worker, dict[str, Any]]]
KINDS: dict[str, tuple[Setting, set[str], Kind]] = {
    "model draft": (
        DRAWN,
        {"draft"},
        lambda sampler: (model(0, sampler), {"mode": Mode.SPECULATIVE, "length": 2}),
    ),
    "hit, or a miss that the draft fills": (
        DRAWN,
        {"cache", "draft"},
        lambda sampler: (model(1, sampler), {"length": 1, "budget": 1, "fallback": ("draft",)}),
    ),
    "hit, or a miss that goes without": (
        DRAWN,
        {"cache", "none"},
        lambda sampler: (model(1, sampler), {"length": 1, "budget": 1}),
    ),
    "builds cut after a pass": (
        DRAWN,
        {"cache", "none"},
        lambda sampler: (Cut(model(1, sampler), 2), {"length": 3, "budget": 1}),
    ),
    "model draft under a grammar": (
        RULED,
        {"draft"},
        lambda sampler: (model(0, sampler, UNRULED_Q), {"mode": Mode.SPECULATIVE, "length": 1}),
    ),
    "miss that n-grams fill": (
        CERTAIN,
        {"proposer"},
        lambda sampler: (model(0, sampler), {"budget": 0, "fallback": (source(NgramProposer(min_match=1)),)}),
    ),
    "miss that suffixes fill": (
        CERTAIN,
        {"proposer"},
        lambda sampler: (model(0, sampler), {"budget": 0, "fallback": (source(SuffixProposer()),)}),
    ),
    "miss that the shadow fills": (
        CERTAIN,
        {"cache", "shadow"},
        lambda sampler: (model(1, sampler), {"budget": 1, "fallback": ("shadow",)}),
    ),
    "prediction": (CERTAIN, {"prediction"}, lambda sampler: (model(0, sampler), {"budget": 0})),
    "n-grams as the draft": (
        CERTAIN,
        {"cache"},
        lambda sampler: (proposing(NgramProposer(min_match=1)), {"budget": 2}),
    ),
    "draft at temperature 0": (
        CERTAIN,
        {"draft"},
        lambda sampler: (proposing(Likeliest()), {"mode": Mode.SPECULATIVE, "length": 1}),
    ),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
Distribution = dict[tuple[int, ...], float]


def completed(text: tuple[int, ...], weight: float, p: Table) -> Distribution:
    """`weight` over all continuations of `text` to the compared length, as the target continues it."""
    if len(text) > COMPARED:
        return {text[: COMPARED + 1]: weight}
    found: Distribution = {}
    for token, share in enumerate(p[text[-1]]):
        if share:
            found |= completed((*text, token), weight * share / 4, p)
    return found


async def two_rounds(kind: str, sampler: RejectionSampler, words: Words) -> tuple[tuple[int, ...], set[str]]:
    """The tokens that the prompt and two rounds give, and who proposed in them."""
    setting, _, make = KINDS[kind]
    worker, settings = make(sampler)
    chain: Any = Chain(setting.unruled_p)
    target = LoadedModel(chain.config, chain, ToyTokenizer(VOCAB), "chain")
    rig = Rig(target, worker, sampler=sampler, **({"length": 1} | settings))
    params = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=20, seed=1, ignore_eos=True)
    prediction = ' "! !"' if kind == "prediction" else None
    sequence = rig.submit(Request("a", prompt_token_ids=PROMPT, params=params, prediction=prediction))
    if setting.has_grammar:
        rules = Rules(len(PROMPT), grammar=lambda: GrammarMask(NoTwos(), frozenset()))
        sequence.draw = replace(sequence.draw, rules=rules)
    for number in range(3):
        words.is_last_round = number == 2
        await rig.core.run_round()
    return tuple(sequence.token_ids[len(PROMPT) :]), {record.source for record in rig.records[1:]}


async def enumerated(
    kind: str, monkeypatch: pytest.MonkeyPatch, wrong: Callable[[pytest.MonkeyPatch], None] | None = None
) -> tuple[Distribution, set[str]]:
    """The distribution of the first tokens over all runs, and all sources that were seen."""
    setting, sampler = KINDS[kind][0], RejectionSampler()
    words = Words(setting.sizes)
    monkeypatch.setattr(streams, "position_word", words.of_position)
    monkeypatch.setattr(streams, "proposal_word", words.of_proposal)
    if wrong is not None:
        wrong(monkeypatch)
    found: Distribution = defaultdict(float)
    sources: set[str] = set()
    while words.next_run():
        text, seen = await two_rounds(kind, sampler, words)
        sources |= seen
        for whole, share in completed(text, words.weight, setting.p).items():
            found[whole] += share
    return dict(found), sources


@EACH_KIND
async def test_two_rounds_have_the_targets_distribution(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever proposes, whatever hits: to the last digit."""
    found, sources = await enumerated(kind, monkeypatch)
    assert KINDS[kind][1] <= sources
    assert found == pytest.approx(completed((1,), 1.0, KINDS[kind][0].p), abs=1e-6)


def one_word_for_two_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft's token and its acceptance share their noise."""
    of_position = streams.position_word
    monkeypatch.setattr(streams, "proposal_word", lambda seed, line, at: of_position(seed, ACCEPT_STREAM, at))


def position_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second draft of a proposal on, acceptance looks at the word of the position before."""
    of_position = streams.position_word

    def late(seed: int, stream: int, position: int) -> int:
        behind = stream == ACCEPT_STREAM and position > len(PROMPT) + 1
        return of_position(seed, stream, position - behind)

    monkeypatch.setattr(streams, "position_word", late)


def greedy_acceptance_on_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts that were not drawn are accepted where they are the target's likeliest token."""
    rule = ratio.verify_by_ratio

    def verify(drafts: Sequence[int], drawn_from: Sequence[Odds], targets: Any, *rest: Any) -> Verdict:
        if drawn_from:
            return rule(drafts, drawn_from, targets, *rest)
        likeliest = (certain(int(p.token_ids[p.masses.argmax()])) for p in targets)
        return rule(drafts, drawn_from, likeliest, *rest)

    monkeypatch.setattr(chance, "verify_by_ratio", verify)


def trimmed_by_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft ends before a token that somebody does not like, after it was drawn."""
    begin = Drafting.add

    def trimmed(line: Drafting, pick: Pick) -> None:
        begin(line, replace(pick, token=-1) if pick.token == 2 else pick)

    monkeypatch.setattr(Drafting, "add", trimmed)


def trimmed_where_the_grammar_forbids(monkeypatch: pytest.MonkeyPatch) -> None:
    """q is not masked; a draft ends before a token that was drawn and that the grammar forbids."""
    add = Drafting.add
    monkeypatch.setattr(Followers, "guess", lambda followers, rules, logits, *text: logits)

    def trimmed(line: Drafting, pick: Pick) -> None:
        add(line, replace(pick, token=-1) if pick.token == 2 else pick)

    monkeypatch.setattr(Drafting, "add", trimmed)


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (trimmed_where_the_grammar_forbids, "model draft under a grammar"),
        (one_word_for_two_uses, "model draft"),
        (one_word_for_two_uses, "hit, or a miss that goes without"),
        (position_behind, "model draft"),
        (greedy_acceptance_on_a_miss, "miss that n-grams fill"),
        (trimmed_by_its_own_token, "model draft"),
    ],
)
async def test_a_wrong_rule_shows(
    wrong: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a fault that engines of this kind have had."""
    found, _ = await enumerated(kind, monkeypatch, wrong)
    assert found != pytest.approx(completed((1,), 1.0, KINDS[kind][0].p), abs=1e-3)

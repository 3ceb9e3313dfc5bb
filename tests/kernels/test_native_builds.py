"""A build in one native call is what Python makes pass by pass: the same tokens, guesses and KV."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import addressof, c_int32
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_kernels.cpu.matrix import Format, use_threads
from ssd_plugins.cache_policies import Adaptive
from ssd_plugins.samplers import CoupledSampler
from ssd_runtime.clock import ManualClock
from ssd_runtime.hooks.kinds import Sampler
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import Draw, Rules, StopWord
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.native import NativePass
from ssd_runtime.speculation.commands import BuildCommand, BuildResult, DraftCommand, DraftRow, ForgetCommand
from ssd_runtime.speculation.drafting import DraftWorker
from ssd_runtime.speculation.lines import READ_CHUNK
from ssd_runtime.speculation.model_draft import DecoderDraft
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.speculation.trunk import Path, Trunk
from ssd_runtime.testing.panels import InPanels
from ssd_runtime.testing.rig import PlainSampler
from ssd_runtime.testing.toy import cpu_kernels, toy_weights

VOCAB, CONTEXT, BLOCK = 61, 240, 4
CONFIG = DecoderConfig(
    vocab_size=VOCAB + 3,
    hidden=36,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=10,
    intermediate=44,
    max_position=CONTEXT,
    qkv_bias=True,
    windows=(None, 100, None),
)
"""Three tokens more than the target's: a padded head."""
ENOUGH = 1000
KV_TYPES = [torch.float16, torch.int8, torch.float8_e4m3fn]


def made(isa: str, kind: Format) -> Decoder:
    with cpu_kernels(isa):
        return Decoder(CONFIG, toy_weights(CONFIG, seed=1, scale=0.2), InPanels(kind))


@pytest.fixture(scope="module")
def decoder(isa: str) -> Decoder:
    """A toy draft in 8 bits on one library."""
    return made(isa, Format.INT8)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads are left as they were."""
    yield
    use_threads(1)


class Lane:
    """A draft's worker with memory of its own."""

    def __init__(self, decoder: Decoder, sampler: Sampler, num_blocks: int, dtype: torch.dtype) -> None:
        self.blocks = BlockManager(num_blocks, BLOCK)
        self.kv = decoder.new_kv(num_blocks, BLOCK, dtype)
        draft = DecoderDraft(decoder, self.kv, self.blocks, VOCAB)
        self.worker = DraftWorker(
            draft, sampler, Adaptive().allot, vocab_size=VOCAB, num_candidates=9, clock=ManualClock()
        )

    def trunk(self, uid: int) -> Trunk:
        return self.worker._trunks[uid]

    def memory(self) -> dict[int, list[tuple[int, list[int], Tensor]]]:
        """Of each sequence the trunk and the branches: start, tokens read, and their KV, byte by byte."""
        return {
            uid: [self.content(path) for path in (trunk.path, *trunk._branches) if path.read]
            for uid, trunk in self.worker._trunks.items()
        }

    def content(self, path: Path) -> tuple[int, list[int], Tensor]:
        assert path.state.length == path.start + len(path.read)
        positions = torch.arange(path.state.length)
        blocks = torch.tensor(path.state.table, dtype=torch.int64)[positions // BLOCK]
        kv = self.kv.data[:, blocks, :, positions % BLOCK].contiguous()
        return path.start, path.read, kv.view(torch.uint8)

    def check_blocks(self) -> None:
        """Every block is free or in the table of a trunk or a branch."""
        trunks = self.worker._trunks.values()
        self.blocks.check([path.state.table for trunk in trunks for path in (trunk.path, *trunk._branches)])


class Pair:
    """The same commands for a lane that makes native calls and for one that goes pass by pass."""

    def __init__(
        self, decoder: Decoder, num_blocks: int = ENOUGH, dtype: torch.dtype = torch.float32
    ) -> None:
        self.native = Lane(decoder, CoupledSampler(), num_blocks, dtype)
        self.stepwise = Lane(decoder, PlainSampler(), num_blocks, dtype)
        self.lanes = (self.native, self.stepwise)

    def execute(self, command: Any) -> Any:
        """The result, when both agree on it and on what they remember."""
        result, expected = (lane.worker.execute(command) for lane in self.lanes)
        self.agree(result, expected)
        return result

    def agree(self, result: Any, expected: Any) -> None:
        if isinstance(result, BuildResult):
            assert result.rows == expected.rows
            assert [step.tokens for step in result.steps] == [step.tokens for step in expected.steps]
        else:
            assert result == expected
        ours, theirs = self.native.memory(), self.stepwise.memory()
        assert ours.keys() == theirs.keys()
        for uid, paths in ours.items():
            for path, other in zip(paths, theirs[uid], strict=True):
                assert path[:2] == other[:2]
                assert torch.equal(path[2], other[2])
        for lane in self.lanes:
            lane.check_blocks()


@dataclass
class Text:
    """A sequence, as the engine's loop knows it: what is committed, and what was prepared behind it."""

    uid: int
    token_ids: tuple[int, ...]
    draw: Draw
    length: int
    max_len: int
    end_ids: frozenset[int]
    budget: int
    sent: Proposal = NOTHING
    prepared: dict[tuple[int, int], Proposal] = field(default_factory=dict)

    @classmethod
    def random(cls, uid: int, random: Random) -> Text:
        committed = random.choice([1, 2, 5, 30, READ_CHUNK, READ_CHUNK + 1, 150])
        return cls(
            uid,
            tuple(random.randrange(VOCAB) for _ in range(committed)),
            Draw(
                random.getrandbits(64),
                random.choice([0.0, 0.7, 1.3]),
                random.choice([0, 0, 5]),
                random.choice([1.0, 0.9]),
                random.choice([0.0, 0.05]),
            ),
            random.randint(1, 6),
            min(CONTEXT, committed + random.choice([3, 12, 80])),
            frozenset(random.sample(range(VOCAB), random.choice([0, 1, 6]))),
            random.choice([0, 1, 4, 8]),
        )

    @property
    def is_over(self) -> bool:
        return len(self.token_ids) + 2 > self.max_len

    def row(self) -> DraftRow:
        return DraftRow(
            self.uid,
            self.token_ids,
            self.draw,
            self.length,
            self.max_len,
            self.end_ids,
            self.sent,
            self.budget,
        )

    def choose_proposal(self, drafted: Proposal, random: Random) -> None:
        """What the target verifies next: of the draft's own, of somebody else's, shortened, or nothing."""
        room = max(0, self.max_len - len(self.token_ids) - 1)
        foreign = Proposal(tuple(random.randrange(VOCAB) for _ in range(random.randint(1, 4))))
        chosen = random.choice([self.sent, self.sent, drafted, foreign, NOTHING])
        self.sent = chosen.served("somebody", min(room, random.randint(1, 6)), looked_up=True)

    def commit(self, random: Random) -> None:
        """A verdict: some tokens accepted, and a bonus that was prepared for, or another one."""
        outcomes = [*self.prepared, (random.randint(0, len(self.sent.token_ids)), random.randrange(VOCAB))]
        accepted, bonus = random.choice(outcomes)
        self.token_ids += (*self.sent.token_ids[:accepted], bonus)
        self.sent = self.prepared.get((accepted, bonus), NOTHING)
        self.prepared = {}


def rounds(pair: Pair, seed: int, number: int = 6) -> None:
    """Random texts, a few rounds long: drafts, builds, verdicts, new texts for those that end."""
    random = Random(seed)
    texts = [Text.random(uid, random) for uid in range(random.randint(1, 3))]
    for round_number in range(number):
        rows = tuple(text.row()._replace(proposal=NOTHING) for text in texts)
        drafted = pair.execute(DraftCommand(rows, StopWord())) if random.random() < 0.4 else [NOTHING] * 3
        for text, proposal in zip(texts, drafted, strict=False):
            text.choose_proposal(proposal, random)
        built = pair.execute(BuildCommand(tuple(text.row() for text in texts), StopWord()))
        for text, branches in zip(texts, built.rows, strict=True):
            text.prepared = {(branch.accepted, branch.bonus): branch.proposal for branch in branches or ()}
            text.commit(random)
        for i, text in enumerate(texts):
            if text.is_over:
                pair.execute(ForgetCommand((text.uid,)))
                texts[i] = Text.random(100 * (round_number + 1) + i, random)


@pytest.mark.parametrize("seed", range(4))
def test_rounds_of_random_texts_agree(decoder: Decoder, seed: int) -> None:
    """Whatever was proposed and accepted, wherever answers end, however much is to be read."""
    use_threads(1 + seed % 2)
    rounds(Pair(decoder), seed)


@pytest.mark.parametrize("kind", Format, ids=lambda kind: kind.name.lower())
def test_rounds_agree_in_every_format(isa: str, kind: Format) -> None:
    """Of weights."""
    rounds(Pair(made(isa, kind)), seed=kind, number=3)


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_rounds_agree_in_every_format_of_keys_and_values(decoder: Decoder, dtype: torch.dtype) -> None:
    """Forks copy scales too."""
    rounds(Pair(decoder, dtype=dtype), seed=4, number=3)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_agree_where_memory_is_short(decoder: Decoder, seed: int) -> None:
    """What cannot be reserved whole goes pass by pass, as far as memory lasts."""
    rounds(Pair(decoder, num_blocks=40 + 15 * seed), seed)


def hit(pair: Pair) -> DraftRow:
    """A row whose proposal is the draft's own: its branches open before the first pass, but for the last."""
    row = DraftRow(1, tuple(range(1, 30)), Draw(5, 0.9), 4, CONTEXT, budget=6)
    [proposal] = pair.execute(DraftCommand((row,), StopWord()))
    return row._replace(proposal=proposal)


def test_one_call_does_everything(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catch-up, forks, branches and draws of a build; and the passes of a draft."""
    calls: list[str] = []
    for name in ("build", "draw", "logits"):
        whole = getattr(NativePass, name)

        def counted(*arguments: Any, name: str = name, whole: Any = whole) -> Any:
            calls.append(name)
            return whole(*arguments)

        monkeypatch.setattr(NativePass, name, counted)
    lane = Lane(decoder, CoupledSampler(), ENOUGH, torch.float32)
    row = DraftRow(1, tuple([5] * 150), Draw(5, 0.9), 4, CONTEXT, budget=6)
    [proposal] = lane.worker.execute(DraftCommand((row,), StopWord()))
    assert len(proposal.token_ids) == 4
    result = lane.worker.execute(BuildCommand((row._replace(proposal=proposal),), StopWord()))
    assert len(result.rows[0]) == 6
    assert calls == ["build", "build"]


def test_a_row_with_rules_makes_everybody_go_pass_by_pass(decoder: Decoder) -> None:
    """Its logits are looked at in Python; the plain row beside it gets what it would get alone."""
    pair = Pair(decoder)
    ruled = DraftRow(
        2, (3, 4, 5), Draw(5, 0.9, rules=Rules(1, banned_token_ids=(9, 10))), 4, CONTEXT, budget=4
    )
    plain = DraftRow(1, (3, 4, 5), Draw(5, 0.9), 4, CONTEXT, budget=4)
    both = pair.execute(BuildCommand((plain, ruled), StopWord()))
    alone = Pair(decoder).execute(BuildCommand((plain,), StopWord()))
    assert both.rows[0] == alone.rows[0]


class Word(StopWord):
    """A stop word that somebody keeps elsewhere."""

    __slots__ = ("_elsewhere",)

    def __init__(self, address: int) -> None:
        super().__init__()
        self._elsewhere = c_int32.from_address(address)

    @property
    def address(self) -> int:
        return addressof(self._elsewhere)

    def is_set(self) -> bool:
        return self._elsewhere.value != 0

    def interrupts(self) -> bool:
        return self._elsewhere.value == AT_ONCE


AFTER_STEP, AT_ONCE = 1, 2
"""What a stop word may say; as float32 numbers, 2^-149 and 2^-148."""


@pytest.fixture(scope="module")
def telling(isa: str) -> Decoder:
    """A decoder that writes stop words: in all layers the values' first two numbers have the bits 1 and 2."""
    weights = toy_weights(CONFIG, seed=1, scale=0.2)
    words = torch.tensor([AFTER_STEP, AT_ONCE], dtype=torch.int32)
    for layer in range(CONFIG.layers):
        name = f"model.layers.{layer}.self_attn.v_proj"
        weights[f"{name}.weight"][:2] = 0
        weights[f"{name}.bias"][:2] = words.view(torch.float32)
    with cpu_kernels(isa):
        return Decoder(CONFIG, weights, InPanels(Format.FLOAT32))


def word_at(lane: Lane, path: Path, position: int, layer: int, says: int) -> Word:
    """The word that says `says` as soon as `layer` has written the KV of `position` of `path`."""
    block, offset = path.state.table[position // BLOCK], position % BLOCK
    place = lane.kv.data[layer, block, 0, offset, CONFIG.head_dim + says - 1 :]
    return Word(place.data_ptr())


@dataclass(frozen=True)
class Case:
    """A command, by the last position that each of its passes feeds: of the trunk, then of the last line."""

    command: type[DraftCommand | BuildCommand]
    row: Callable[[Pair], DraftRow]
    reading: Sequence[int]
    growing: Sequence[int]

    def path(self, trunk: Trunk, step: int) -> Path:
        """The path whose position the pass feeds."""
        is_line = step >= len(self.reading) and trunk._branches
        return trunk._branches[-1] if is_line else trunk.path


def long(pair: Pair) -> DraftRow:
    """A row of which nothing was read."""
    return DraftRow(1, tuple(n * n % VOCAB for n in range(150)), Draw(5, 0.9), 4, CONTEXT, budget=6)


CASES = {
    "a draft": Case(DraftCommand, long, (63, 127, 149), (150, 151, 152)),
    "a join": Case(BuildCommand, long, (63, 127, 149), (150, 151, 152, 153)),
    "a hit": Case(BuildCommand, hit, (32,), (33, 34, 35, 36)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    ("says", "layer", "finished"),
    [(AT_ONCE, 0, 0), (AT_ONCE, CONFIG.layers - 1, 1), (AFTER_STEP, 0, 1)],
    ids=["given up", "just done", "finished"],
)
def test_a_stop_word_at_any_moment(telling: Decoder, name: str, says: int, layer: int, finished: int) -> None:
    """Both lanes are stopped by their own pass, in the same layer of the same step. What came before it is
    kept, and the same command afterwards comes to what it would have come to at first."""
    case, whole = CASES[name], Pair(telling)
    undisturbed = whole.execute(case.command((case.row(whole),), StopWord()))
    for step, position in enumerate((*case.reading, *case.growing)):
        pair, results = Pair(telling), []
        row = case.row(pair)
        for lane, model in zip(pair.lanes, whole.lanes, strict=True):
            word = word_at(lane, case.path(model.trunk(1), step), position, layer, says)
            results.append(lane.worker.execute(case.command((row,), word)))
        pair.agree(*results)
        assert reached(results[0]) == passes(case, step + finished)
        again = pair.execute(case.command((row,), StopWord()))
        assert rows_of(again) == rows_of(undisturbed)


def reached(result: Any) -> int:
    """How many passes a build counts; of a draft, how many tokens it has."""
    return len(result.steps) if isinstance(result, BuildResult) else len(result[0].token_ids)


def passes(case: Case, done: int) -> int:
    """What `reached` is after `done` passes: a draft's first token comes with its last reading pass."""
    return done if case.command is BuildCommand else max(0, done - len(case.reading) + 1)


def rows_of(result: Any) -> Any:
    return result.rows if isinstance(result, BuildResult) else result


def test_a_word_that_is_set_before_stops_everything(decoder: Decoder) -> None:
    """Not one pass is made."""
    pair, stop = Pair(decoder), StopWord()
    stop.set_after_step()
    assert pair.execute(BuildCommand((long(pair),), stop)) == BuildResult((None,))
    assert pair.execute(DraftCommand((long(pair),), stop)) == [NOTHING]


@pytest.mark.parametrize("name", CASES)
def test_lines_end_where_numbers_are_of_no_use(isa: str, name: str) -> None:
    """Behind a token that spoils what reads it: a line that draws it has it as its last one."""
    case, healthy = CASES[name], Pair(made(isa, Format.FLOAT32))
    row = case.row(healthy)
    lines = lines_of(healthy.execute(case.command((row,), StopWord())))
    read = {*row.token_ids, *row.proposal.token_ids}
    spoiling = {token for line in lines for token in line[:-1]} - read
    for token in spoiling:
        decoder = made(isa, Format.FLOAT32)
        decoder.embedding[token] = torch.nan
        pair = Pair(decoder)
        expected = [line[: line.index(token) + 1] if token in line else line for line in lines]
        got = lines_of(pair.execute(case.command((row,), StopWord())))
        assert got == [line for line in expected if len(line) > 1 or case.command is DraftCommand]
    assert len(spoiling) > 1


def lines_of(result: Any) -> list[tuple[int, ...]]:
    """What each line of a result says: of a branch its bonus first."""
    if isinstance(result, BuildResult):
        return [(branch.bonus, *branch.proposal.token_ids) for branch in result.rows[0] or ()]
    return [proposal.token_ids for proposal in result]


def test_a_trunk_of_no_use_opens_nothing(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers behind its last token are none; no pass follows the one that found that out."""
    steps: list[int] = []
    whole = NativePass.build

    def build(*arguments: Any) -> Any:
        made_steps = whole(*arguments)
        steps.append(len(made_steps))
        return made_steps

    monkeypatch.setattr(NativePass, "build", build)
    decoder = made(isa, Format.FLOAT32)
    decoder.embedding[5] = torch.nan
    row, pair = DraftRow(1, (1, 2, 5), Draw(5, 0.9), 4, CONTEXT, budget=6), Pair(decoder)
    assert pair.execute(DraftCommand((row,), StopWord())) == [NOTHING]
    assert pair.execute(BuildCommand((row,), StopWord())).rows == ((),)
    assert steps == [1, 1]

"""Admission, chunks and preemption: nothing is lost, nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from dataclasses import dataclass, field
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_runtime.engine.scheduler import BatchRow, Scheduler
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import Draw, Report
from ssd_runtime.sequence import Sequence
from ssd_runtime.types import Request, RowMode

DRAW = Draw(0, 0.0)
NEW = count(100)
Text = TokenIds[int]


def sequence(prompt: int | Text = 3, answer: int = 4, draw: Draw = DRAW, priority: int = 0) -> Sequence:
    """A sequence with this prompt; of so many tokens that nobody else's begins with, where it is a number."""
    text = [next(NEW) for _ in range(prompt)] if isinstance(prompt, int) else list(prompt)
    return Sequence(Request("r", priority=priority), len(text), text, draw, len(text) + answer)


@dataclass
class World:
    """A scheduler, and the engine's part of a round.

    slots: what was written where; the KV of a position is the text up to it.
    """

    num_blocks: int = 16
    block_size: int = 4
    max_batch_size: int = 4
    max_batch_tokens: int = 64
    enable_prefix_caching: bool = True
    preempted: list[Sequence] = field(default_factory=list)
    slots: dict[int, TokenIds[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.blocks = BlockManager(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(
            self.blocks,
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            order=lambda waiting: (waiting.request.priority, waiting.uid),
            on_preempt=self.preempted.append,
            enable_prefix_caching=self.enable_prefix_caching,
        )

    def add(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.scheduler.add(one)

    def round(self, drafts: int = 0, accepted: int = 0) -> list[BatchRow]:
        """One round in which up to `accepted` drafts of each row are right; ended ones leave."""
        rows = self.scheduler.next_batch(
            lambda one: (RowMode.SPECULATIVE, max(0, min(drafts, one.num_left - 1)))
        )
        self.check(rows)
        for row in rows:
            one = row.sequence
            right = min(accepted, row.max_drafts)
            self.forward(row, right)
            tokens = [answer_token(len(one.token_ids) + i) for i in range(right + 1)] if row.samples else []
            one.commit(tokens, one.kv_len + row.num_feed + right)
        for row in rows:
            if row.sequence.num_left == 0:
                self.scheduler.remove(row.sequence)
        return rows

    def forward(self, row: BatchRow, right: int) -> None:
        """A pass: the row reads its own text in its blocks, and writes behind it, wrong drafts too."""
        one = row.sequence
        drafts = [answer_token(len(one.token_ids) + i) for i in range(right)]
        drafts += [-1] * (row.max_drafts - right)
        text = one.token_ids[: one.kv_len + row.num_feed] + drafts
        size = self.block_size
        slots = [one.table[i // size] * size + i % size for i in range(len(text))]
        for i in range(one.kv_len):
            assert self.slots[slots[i]] == text[: i + 1]
        for i in range(one.kv_len, len(text)):
            self.slots[slots[i]] = text[: i + 1]

    def check(self, rows: list[BatchRow]) -> None:
        """What must hold of every round."""
        scheduler = self.scheduler
        assert len({row.sequence.uid for row in rows}) == len(rows) <= self.max_batch_size
        self.blocks.check([one.table for one in (*scheduler.running, *scheduler.waiting)])
        for row in rows:
            one = row.sequence
            assert one in scheduler.running
            assert 1 <= row.num_feed <= one.num_pending
            assert not (row.max_drafts and not row.samples)
            assert len(one.table) * self.block_size >= one.kv_len + row.num_feed + row.max_drafts
        assert len(rows) == len(scheduler.running)
        assert sum(row.num_feed + row.max_drafts for row in rows) <= self.max_batch_tokens

    def play(self, arrivals: TokenIds[tuple[int, Sequence]], drafts: int = 0, accepted: int = 0) -> int:
        """Rounds until everybody has ended; how many. Too many are a livelock."""
        bound = 20 + sum(one.max_len for _, one in arrivals) * (len(arrivals) + 1)
        for number in range(bound):
            self.add(*(one for at, one in arrivals if at == number))
            if not self.scheduler.is_idle:
                assert self.round(drafts, accepted), "a round without rows does nothing for ever"
            elif all(at <= number for at, _ in arrivals):
                return number
        raise AssertionError("not finished")


def answer_token(position: int) -> int:
    """What every answer has there: whoever asks the same is answered the same."""
    return 50 + position % 3


def test_a_long_prompt_is_fed_in_chunks_and_samples_with_the_last() -> None:
    """10 tokens in chunks of 4: 4, 4, 2."""
    world = World(max_batch_tokens=4)
    world.add(sequence(prompt=10))
    rows = [world.round()[0] for _ in range(3)]
    assert [row.num_feed for row in rows] == [4, 4, 2]
    assert rows[-1].sequence.num_generated == 1


def test_rows_that_decode_go_before_prompts() -> None:
    """Case B72: a prompt among speculating rows gets what is left of the tokens, and no drafts."""
    world = World(max_batch_tokens=8)
    world.add(sequence(answer=9))
    world.round()
    world.add(sequence(prompt=10))
    first, second = world.round(drafts=4)
    assert (first.num_feed, first.max_drafts, first.samples) == (1, 4, True)
    assert (second.num_feed, second.max_drafts, second.samples) == (3, 0, False)


def test_no_more_run_than_the_batch_holds() -> None:
    """The others wait in order."""
    world = World(max_batch_size=2)
    ones = [sequence() for _ in range(4)]
    world.add(*ones)
    assert [row.sequence for row in world.round()] == ones[:2]
    assert world.scheduler.waiting == ones[2:]


def test_the_youngest_is_preempted_first_and_comes_back_first() -> None:
    """It keeps its tokens, loses its KV, and its epoch changes."""
    world = World(num_blocks=4, block_size=2)
    old, young, new = (sequence(prompt=3, answer=4) for _ in range(3))
    world.add(old, young)
    world.round()
    world.add(new)
    world.round()
    world.round()
    assert world.preempted == [young]
    assert (young.kv_len, young.epoch, young.table, young.num_generated) == (0, 1, [], 2)
    assert young.num_registered == 0
    assert world.scheduler.waiting == [young, new]
    assert old in world.scheduler.running


def test_drafts_are_given_up_before_anybody_is_preempted() -> None:
    """Speculation never costs another request its memory."""
    world = World(num_blocks=2, block_size=2)
    world.add(sequence(prompt=2, answer=2))
    world.round()
    [row] = world.round(drafts=1)
    assert row.max_drafts == 0 or len(row.sequence.table) <= 2
    assert world.preempted == []


def test_removing_frees_the_blocks_wherever_it_stands() -> None:
    """Running, waiting, or not there at all."""
    world = World(max_batch_size=1)
    running, waiting = sequence(), sequence()
    world.add(running, waiting)
    world.scheduler.next_batch(lambda one: (RowMode.AUTOREGRESSIVE, 0))
    for one in (running, waiting, sequence()):
        world.scheduler.remove(one)
    assert world.scheduler.is_idle
    assert world.blocks.num_free == world.num_blocks


texts = st.lists(st.integers(0, 1), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(texts, st.integers(1, 12), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 10),
    st.integers(1, 4),
    st.sampled_from((4, 5, 9, 64)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.booleans(),
)
def test_every_request_ends_with_all_its_tokens(
    requests: list[tuple[list[int], int, int]],
    block_size: int,
    spare: int,
    max_batch_size: int,
    max_batch_tokens: int,
    drafts: int,
    accepted: int,
    enable_prefix_caching: bool,
) -> None:
    """Memory for one request and little more, arrivals at any round: no loss, no livelock, no foreign KV.

    Prompts that begin alike and are longer than a round; each row has a token in each round.
    """
    num_blocks = -(-24 // block_size) + spare
    world = World(num_blocks, block_size, max_batch_size, max_batch_tokens, enable_prefix_caching)
    arrivals = [(at, sequence(prompt, answer)) for prompt, answer, at in requests]
    world.play(arrivals, drafts, accepted)
    assert all(one.num_left == 0 for _, one in arrivals)
    assert world.blocks.num_free == world.num_blocks
    assert enable_prefix_caching or world.blocks.num_cached == 0


def test_drafts_and_prompts_share_what_is_left_when_every_row_has_its_token() -> None:
    """10 tokens, two rows that decode and want 4 drafts each, two prompts: nobody waits."""
    world = World(max_batch_tokens=10)
    world.add(sequence(answer=9), sequence(answer=9))
    world.round()
    world.add(sequence(prompt=9), sequence(prompt=9))
    rows = world.round(drafts=4)
    assert [(row.num_feed, row.max_drafts) for row in rows] == [(1, 4), (1, 2), (1, 0), (1, 0)]


def test_a_second_turn_reads_only_what_is_new() -> None:
    """The first turn had 6 tokens and an answer of 5; blocks of 4: two of them are full and settled."""
    world = World()
    first = sequence(prompt=6, answer=5)
    world.play([(0, first)])
    second = sequence([*first.token_ids, 7, 8], answer=1)
    world.add(second)
    [row] = world.round()
    assert row.num_feed == 13 - 8
    assert second.num_cached == 8
    stats = world.scheduler.prefix_stats
    assert (stats.queries, stats.hits) == (6 + 13, 8)


def test_a_prompt_that_is_known_to_its_end_still_feeds_its_last_token() -> None:
    """Of 8 tokens in blocks of 4 the second block is read again: something must give the next token."""
    world = World()
    for _ in range(2):
        world.play([(0, again := sequence(range(8), answer=1))])
    assert again.num_cached == 4


def test_cached_tokens_take_nothing_of_a_round() -> None:
    """A known prompt of 13 tokens beside an unknown one: one token, and what is left of 8."""
    world = World(max_batch_tokens=8)
    world.play([(0, sequence(range(13), answer=1))])
    world.add(sequence(range(13)), sequence(prompt=20))
    assert [row.num_feed for row in world.round()] == [1, 7]


def test_a_prompt_whose_log_probabilities_are_wanted_is_read_whole() -> None:
    """Case B37: every position must give its own; who comes later may share it all the same."""
    world = World(max_batch_tokens=100)
    reported = Draw(0, 0.0, report=Report(prompt_logprobs=0))
    world.play([(0, sequence(range(9), answer=1))])
    world.add(sequence(range(9), answer=1, draw=reported), sequence(range(9), answer=1))
    assert [row.num_feed for row in world.round()] == [1, 9]
    assert world.scheduler.prefix_stats.queries == 9 + 9


def test_a_running_requests_prompt_is_shared_while_it_runs() -> None:
    """Its blocks are held by both, and freed when both have gone."""
    world = World(num_blocks=4)
    one, other = sequence(range(9), answer=3), sequence(range(9), answer=3)
    world.add(one)
    world.round()
    world.add(other)
    world.round()
    assert one.table[:2] == other.table[:2]
    world.play([])
    assert world.blocks.num_free == 4


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    """What nobody needed meanwhile is not read a second time, nor counted a second time."""
    world = World(num_blocks=6, block_size=2)
    old, young = sequence(prompt=3, answer=6), sequence(prompt=6, answer=2)
    world.add(old, young)
    world.round()
    world.scheduler._preempt(young)
    queries = world.scheduler.prefix_stats.queries
    rows = world.round()
    assert [row.num_feed for row in rows if row.sequence is young] == [1]
    assert young.num_cached == 0
    assert world.scheduler.prefix_stats.queries == queries


def test_nobody_is_preempted_for_blocks_that_others_hold_too() -> None:
    """The less important one has 3 blocks, but shares 2 of them: its own and the free ones are not enough."""
    world = World(num_blocks=6)
    world.add(sequence(range(9)))
    world.round()
    world.add(less := sequence(range(9), priority=5))
    world.round()
    world.add(sequence(prompt=13, priority=1))
    world.round()
    assert world.preempted == []
    assert less in world.scheduler.running


def test_a_request_that_is_not_admitted_holds_nothing() -> None:
    """Not even the blocks that it would share; they can be given to others."""
    world = World(num_blocks=3, max_batch_size=2)
    world.play([(0, sequence(range(5), answer=1))])
    running, waiting = sequence(prompt=5, answer=2), sequence(range(9))
    world.add(running, waiting)
    world.round()
    assert waiting.table == []
    assert world.scheduler.waiting == [waiting]

"""Admission, chunks and preemption: nothing is lost, nobody waits for ever."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_runtime.engine.scheduler import BatchRow, Scheduler
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import Draw
from ssd_runtime.sequence import Sequence
from ssd_runtime.types import Request

DRAW = Draw(0, 0.0)


def sequence(prompt: int = 3, answer: int = 4) -> Sequence:
    return Sequence(Request("r"), prompt, list(range(prompt)), DRAW, prompt + answer)


@dataclass
class World:
    """A scheduler, and the engine's part of a round."""

    num_blocks: int = 16
    block_size: int = 4
    max_batch_size: int = 4
    max_batch_tokens: int = 64
    preempted: list[Sequence] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.blocks = BlockManager(self.num_blocks, self.block_size)
        self.scheduler = Scheduler(
            self.blocks,
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            order=lambda waiting: waiting.uid,
            on_preempt=self.preempted.append,
        )

    def add(self, *sequences: Sequence) -> None:
        for one in sequences:
            self.scheduler.add(one)

    def round(self, drafts: int = 0, accepted: int = 0) -> list[BatchRow]:
        """One round in which up to `accepted` drafts of each row are right; ended ones leave."""
        rows = self.scheduler.next_batch(lambda one: max(0, min(drafts, one.num_left - 1)))
        self.check(rows)
        for row in rows:
            one = row.sequence
            right = min(accepted, row.max_drafts)
            tokens = [1] * (right + 1) if row.samples else []
            one.commit(tokens, one.kv_len + row.num_feed + right)
            if one.num_left == 0:
                self.scheduler.remove(one)
        return rows

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
        feeds = [row.num_feed for row in rows if not row.sequence.is_decoding]
        assert sum(feeds) <= self.max_batch_tokens


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
    world.scheduler.next_batch(lambda one: 0)
    for one in (running, waiting, sequence()):
        world.scheduler.remove(one)
    assert world.scheduler.is_idle
    assert world.blocks.num_free == world.num_blocks


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 20)), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(0, 10),
    st.integers(1, 4),
    st.sampled_from((4, 5, 9, 64)),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_every_request_ends_with_all_its_tokens(
    requests: list[tuple[int, int, int]],
    block_size: int,
    spare: int,
    max_batch_size: int,
    max_batch_tokens: int,
    drafts: int,
    accepted: int,
) -> None:
    """Memory for one request and little more, arrivals at any round: no loss, no livelock."""
    world = World(-(-24 // block_size) + spare, block_size, max_batch_size, max_batch_tokens)
    arrivals = [(at, sequence(prompt, answer)) for prompt, answer, at in requests]
    bound = 20 + sum(prompt + answer for prompt, answer, _ in requests) * (len(requests) + 1)
    for number in range(bound):
        world.add(*(one for at, one in arrivals if at == number))
        if not world.scheduler.is_idle:
            assert world.round(drafts, accepted), "a round without rows does nothing for ever"
    assert world.scheduler.is_idle
    assert all(one.num_left == 0 for _, one in arrivals)
    assert world.blocks.num_free == world.num_blocks

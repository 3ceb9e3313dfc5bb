"""Copies of KV to the host and back: exact, in order, and by the lane's own streams on a GPU."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

from ssd_runtime.device.transfer import HOST, StreamTransfer
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.memory.swap import HostPages, HostSwap, SwapInCommand, SwapOutCommand, SwappingWorker
from ssd_runtime.messages import Draw
from ssd_runtime.sequence import Sequence
from ssd_runtime.testing.fake_device import FakeDevice
from ssd_runtime.testing.scripted import ScriptedLane
from ssd_runtime.types import Request

FORMATS = (torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8)
BLOCKS, BLOCK = 8, 4


class Passes:
    """A worker that only counts what it is asked."""

    def __init__(self) -> None:
        self.commands: list[Any] = []

    def execute(self, command: Any) -> str:
        """Note it."""
        self.commands.append(command)
        return "passed"


def filled(dtype: torch.dtype) -> PagedKV:
    """A store full of different bytes."""
    kv = PagedKV(2, BLOCKS, BLOCK, 2, 8, dtype)
    words = kv.data.view(torch.uint8)
    words.copy_(torch.randint(0, 255, words.shape, generator=torch.Generator().manual_seed(1)).byte())
    return kv


def bits(kv: PagedKV, *blocks: int) -> torch.Tensor:
    return kv.data[:, list(blocks)].clone().view(torch.uint8)


@pytest.mark.parametrize("dtype", FORMATS)
def test_pages_come_back_to_other_blocks_bit_for_bit(dtype: torch.dtype) -> None:
    """NaN and whatever else the bytes mean included; nobody else's blocks change."""
    kv, pages = filled(dtype), HostPages()
    worker = SwappingWorker(Passes(), kv, HOST)
    before, others = bits(kv, 2, 5, 0), bits(kv, 1, 3, 4, 7)
    worker.execute(SwapOutCommand((2, 5, 0), pages, 11))
    kv.data[:, [0, 2, 5]] = 0
    worker.execute(SwapInCommand((6, 0, 2), pages, 11))
    assert torch.equal(bits(kv, 6, 0, 2), before)
    assert torch.equal(bits(kv, 1, 3, 4, 7), others)
    assert pages.data is None, "the host's memory is free again"


def test_blocks_that_are_there_already_are_not_written() -> None:
    """Shared ones of the prefix cache: only what follows them is copied."""
    kv, pages = filled(torch.float32), HostPages()
    worker = SwappingWorker(Passes(), kv, HOST)
    before = bits(kv, 5, 0)
    worker.execute(SwapOutCommand((2, 5, 0), pages, 11))
    shared = bits(kv, 2)
    worker.execute(SwapInCommand((3, 4), pages, 7, skipped=1))
    assert torch.equal(bits(kv, 3, 4), before)
    assert torch.equal(bits(kv, 2), shared)


def test_other_commands_are_the_wrapped_workers() -> None:
    """And so are their results."""
    passes = Passes()
    worker = SwappingWorker(passes, filled(torch.float32), HOST)
    assert worker.execute("anything") == "passed"
    assert passes.commands == ["anything"]


def test_the_pass_behind_a_failed_swap_is_not_made() -> None:
    """The one after it is: by then nobody counts on that KV any more."""
    passes = Passes()
    worker = SwappingWorker(passes, filled(torch.float32), HOST)
    with pytest.raises(RuntimeError, match="never copied out"):
        worker.execute(SwapInCommand((0,), HostPages(), 3))
    with pytest.raises(RuntimeError, match="not brought back"):
        worker.execute("a pass")
    assert worker.execute("another") == "passed"
    assert passes.commands == ["another"]


def test_swaps_mix_no_devices() -> None:
    """Under torch's fake tensors every index and every page is where the operation is."""
    with FakeTensorMode():
        transfer = StreamTransfer(FakeGPU(lambda n: 0))
        with transfer.use():
            kv = PagedKV(2, BLOCKS, BLOCK, 2, 8, torch.float16, FakeGPU.device)
            pages = kv.pages((2, 5), transfer)
            assert pages.device.type == "cpu"
            kv.restore((1, 0), pages, transfer)


class FakeGPU(FakeDevice):
    """Memory that torch believes to be on a GPU. It holds nothing, so that there is nothing to copy."""

    device = torch.device("meta")

    def pinned_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Host memory."""
        return torch.empty_like(tensor, device="cpu")

    def device_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory on the device."""
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: object) -> None:
        """Only between host and device."""
        assert target.device != source.device


def sequence(kv_len: int) -> Sequence:
    one = Sequence(Request("r"), 1, list(range(kv_len + 1)), Draw(0, 0.0), 100)
    one.kv_len, one.table = kv_len, list(range(-(-kv_len // BLOCK)))
    return one


def host(lane: ScriptedLane, capacity: int) -> HostSwap:
    return HostSwap(lane.submit, block_size=BLOCK, block_bytes=10, capacity=capacity)


async def test_the_bonus_is_not_part_of_the_kv() -> None:
    """Of 9 tokens 8 have KV: two blocks, though the sequence holds three."""
    lane = ScriptedLane("target")
    one = sequence(8)
    one.table.append(7)
    assert host(lane, 100).swap_out(one)
    [command] = lane.commands
    assert (command.kind, command.blocks, command.num_tokens, command.num_rows) == ("swap_out", (0, 1), 8, 1)


async def test_a_sequence_without_kv_is_not_swapped() -> None:
    """It was preempted before its first pass."""
    lane = ScriptedLane("target")
    assert not host(lane, 100).swap_out(sequence(0))
    assert lane.commands == []


async def test_cached_beginnings_are_not_copied_back() -> None:
    """A sequence that found its first block in the prefix cache gets the rest."""
    lane = ScriptedLane("target")
    swap, one = host(lane, 100), sequence(11)
    assert swap.swap_out(one)
    lane.complete(None)
    one.kv_len, one.table = 4, [9, 8, 7]
    swap.swap_in(one)
    command = lane.pending[0]
    assert (command.blocks, command.skipped, command.num_tokens, one.kv_len) == ((8, 7), 1, 7, 11)


async def test_what_is_cached_as_a_whole_is_not_copied_back_at_all() -> None:
    """The cache knows more than was swapped."""
    lane = ScriptedLane("target")
    swap, one = host(lane, 100), sequence(8)
    assert swap.swap_out(one)
    one.kv_len, one.table = 8, [9, 8]
    swap.swap_in(one)
    assert [command.kind for command in lane.commands] == ["swap_out"]
    assert (len(swap), swap.used, one.kv_len) == (0, 0, 8)


async def test_a_copy_that_failed_is_recomputed() -> None:
    """The failure is known by the time the sequence is admitted again."""
    lane = ScriptedLane("target")
    swap, one = host(lane, 100), sequence(8)
    assert swap.swap_out(one)
    lane.fail(MemoryError())
    await asyncio.sleep(0)
    one.forget_kv()
    swap.swap_in(one)
    assert [command.kind for command in lane.commands] == ["swap_out"]
    assert (len(swap), swap.used, one.kv_len) == (0, 0, 0)


async def test_a_copy_that_is_still_queued_is_followed_by_its_way_back() -> None:
    """A lane carries out its commands in order."""
    lane = ScriptedLane("target")
    swap, one = host(lane, 100), sequence(8)
    assert swap.swap_out(one)
    one.forget_kv()
    swap.swap_in(one)
    assert [command.kind for command in lane.pending] == ["swap_out", "swap_in"]
    assert one.kv_len == 8


async def test_a_lane_that_is_replaced_owes_no_copies() -> None:
    """What it had copied out comes back by the new lane; what it had not is recomputed."""
    lane = ScriptedLane("target")
    swap, one, other = host(lane, 100), sequence(8), sequence(5)
    assert swap.swap_out(one)
    assert swap.swap_out(other)
    lane.complete(None)
    swap.start_over()
    assert (len(swap), swap.used) == (1, 20)
    for each in (one, other):
        each.forget_kv()
        swap.swap_in(each)
    assert (one.kv_len, other.kv_len) == (8, 0)
    assert [command.kind for command in lane.commands] == ["swap_out", "swap_out", "swap_in"]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("out", "in", "drop")), st.integers(0, 5)), max_size=40),
    st.integers(0, 100),
)
def test_the_books_of_host_memory_are_right(steps: list[tuple[str, int]], capacity: int) -> None:
    """At any time: bytes of those that are kept, never more than there may be."""

    async def play() -> None:
        swap = host(ScriptedLane("target"), capacity)
        sequences = [sequence(3 * i) for i in range(6)]
        kept: set[int] = set()
        for what, i in steps:
            one = sequences[i]
            nbytes = 10 * -(-3 * i // BLOCK)
            if what == "out" and i not in kept:
                fits = 0 < nbytes <= capacity - swap.used
                assert swap.swap_out(one) == fits
                kept |= {i} if fits else set()
            elif what == "in":
                swap.swap_in(one)
                kept.discard(i)
            elif what == "drop":
                swap.drop(one)
                kept.discard(i)
            assert len(swap) == len(kept)
            assert swap.used == sum(10 * -(-3 * i // BLOCK) for i in kept) <= capacity

    asyncio.run(play())

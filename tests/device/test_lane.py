"""A lane carries out commands in order on its own thread, and outlives whatever its worker does."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.cores import BEHIND, available_cores
from ssd_runtime.device.lane import CommandRecord, Lane
from ssd_runtime.errors import EngineClosedError
from ssd_runtime.speculation.commands import BuildResult, StepCost


@dataclass(frozen=True)
class Call:
    """A command that calls a function."""

    function: Callable[[], Any]
    kind: str = "call"
    num_rows: int = 2
    num_tokens: int = 3


class Caller:
    """Carries out `Call`s."""

    def execute(self, command: Call) -> Any:
        """Call it."""
        return command.function()


def raising(error: BaseException) -> Callable[[], Any]:
    def function() -> Any:
        raise error

    return function


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("test", Caller(), clock=ManualClock())
    yield lane
    lane.close()
    assert lane.join(10.0)


async def test_commands_are_carried_out_in_order_on_one_thread(lane: Lane) -> None:
    """Which is not the caller's."""
    done: list[int] = []

    def noting(number: int) -> Callable[[], str]:
        def note() -> str:
            done.append(number)
            return threading.current_thread().name

        return note

    futures = [lane.submit(Call(noting(number))) for number in range(20)]
    threads = {await future for future in futures}
    assert done == list(range(20))
    assert threads == {"ssd-test"}


@pytest.mark.parametrize(
    "error",
    [ValueError("wrong"), StopIteration(), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()],
)
async def test_whatever_a_worker_raises_is_told_and_the_lane_goes_on(
    lane: Lane, error: BaseException
) -> None:
    """As an ordinary exception: nothing that would end a loop or a thread, or wait for ever."""
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is looked at below
        await asyncio.wait_for(lane.submit(Call(raising(error))), 10)
    assert type(error).__name__ in repr(caught.value)
    assert await lane.submit(Call(lambda: 7)) == 7


async def test_a_cancelled_wait_does_not_disturb_the_next(lane: Lane) -> None:
    """The command runs to its end; its result goes nowhere."""
    gate = threading.Event()
    first = lane.submit(Call(gate.wait))
    second = lane.submit(Call(lambda: 2))
    first.cancel()
    gate.set()
    assert await second == 2


async def test_a_closed_lane_finishes_what_is_queued_and_takes_nothing_more() -> None:
    """And closing twice is closing once."""
    lane = Lane("test", Caller(), clock=ManualClock())
    gate = threading.Event()
    first, second = lane.submit(Call(gate.wait)), lane.submit(Call(lambda: 2))
    lane.close()
    lane.close()
    with pytest.raises(EngineClosedError, match="test is closed"):
        lane.submit(Call(lambda: 3))
    assert not lane.join(0)
    gate.set()
    assert (await first, await second) == (True, 2)
    assert await asyncio.to_thread(lane.join, 10.0)


def test_a_lane_is_alive_until_its_thread_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed, or killed by what no lane survives."""
    lane = Lane("test", Caller(), clock=ManualClock())
    seen = [lane.is_alive]
    lane.close()
    assert lane.join(10.0)
    assert [*seen, lane.is_alive] == [True, False]
    died: list[BaseException | None] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: died.append(what.exc_value))
    monkeypatch.setattr(Lane, "_serve", lambda self: raising(MemoryError("no memory for a frame"))())
    killed = Lane("test", Caller(), clock=ManualClock())
    assert killed.join(10.0)
    assert not killed.is_alive
    assert len(died) == 1


def test_a_lane_ends_although_the_loop_that_waited_is_gone() -> None:
    """Its last command outlives the loop; the thread still ends."""
    gate = threading.Event()
    lane = Lane("test", Caller(), clock=ManualClock())

    async def submit() -> None:
        lane.submit(Call(gate.wait))

    asyncio.run(submit())
    gate.set()
    lane.close()
    assert lane.join(10.0)


async def test_each_command_is_recorded_with_its_times_before_its_result_is_seen() -> None:
    """On the loop, so that no lock is needed."""
    clock, records = ManualClock(1.0), list[CommandRecord]()
    lane = Lane("test", Caller(), clock=clock, on_record=records.append)
    await lane.submit(Call(lambda: clock.advance(2.0)))
    assert records == [CommandRecord("test", "call", 2, 3, 1.0, 3.0)]
    lane.close()


async def test_a_record_has_the_passes_that_a_result_counts() -> None:
    """A build says how many draft passes it made; most results say nothing."""
    records = list[CommandRecord]()
    lane = Lane("test", Caller(), clock=ManualClock(), on_record=records.append)
    await lane.submit(Call(lambda: BuildResult((), (StepCost(1, 0.1), StepCost(4, 0.2)))))
    await lane.submit(Call(lambda: None))
    assert [record.passes for record in records] == [2, 0]
    lane.close()


async def test_the_thread_is_confined_and_set_up_before_the_first_command() -> None:
    """To the cores given; the caller's own thread is not."""
    core, before = frozenset({min(available_cores())}), available_cores()
    steps: list[str] = []
    lane = Lane("test", Caller(), clock=ManualClock(), cores=core, setup=lambda: steps.append("setup"))

    def look() -> frozenset[int]:
        steps.append("command")
        return frozenset(os.sched_getaffinity(0))

    confined = await lane.submit(Call(look))
    assert confined == core
    assert steps == ["setup", "command"]
    assert available_cores() == before
    lane.close()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere niceness belongs to whole processes")
async def test_the_thread_gives_way_to_the_loops(lane: Lane) -> None:
    """And only the lane's: the threads of its own process go first."""
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    theirs = await lane.submit(Call(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    assert theirs == min(own + BEHIND, 19)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own

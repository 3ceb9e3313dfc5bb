"""A draft that fails or hangs costs only its proposals. Patience is the test's."""

from __future__ import annotations

import asyncio

import pytest

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.supply import MOST_HANGING
from ssd_runtime.messages import StopWord
from ssd_runtime.speculation.commands import DraftCommand, ForgetCommand
from ssd_runtime.speculation.draft_lane import (
    FIRST_PAUSE,
    HANGS_SECONDS,
    LONGEST_PAUSE,
    MAX_FAULTS,
    STEADY_SECONDS,
    DraftLane,
)
from ssd_runtime.testing.rig import settle
from ssd_runtime.testing.scripted import ScriptedLane


def command() -> DraftCommand:
    return DraftCommand((), StopWord())


def lane(scripted: ScriptedLane, patience: float = 60.0) -> DraftLane:
    return DraftLane(lambda: scripted, name="mine", patience=lambda: patience)


async def failing(draft: DraftLane, scripted: ScriptedLane) -> object:
    running = asyncio.create_task(draft.run(command()))
    await settle()
    scripted.fail(RuntimeError("no"))
    return await running


async def test_a_result_is_handed_on() -> None:
    """And the stop word is set by then, whoever else looks at it."""
    scripted = ScriptedLane()
    draft, asked = lane(scripted), command()
    running = asyncio.create_task(draft.run(asked))
    await settle()
    assert not asked.stop.is_set()
    scripted.complete([1])
    assert await running == [1]
    assert draft.status == "ok"


async def test_the_end_waits_for_a_thread_that_serves_and_for_no_other() -> None:
    """One that hangs would keep the process for as long as it likes."""
    waited: list[float | None] = []

    class Waited(ScriptedLane):
        def join(self, timeout: float | None = None) -> bool:
            """Notes how long it may take."""
            waited.append(timeout)
            return True

    draft = lane(Waited(), 0.0)
    assert draft.join(5.0)
    await draft.run(command())
    assert draft.status == "stuck"
    draft.join(5.0)
    assert waited == [5.0, 0.0]


async def test_after_some_failures_in_a_row_the_draft_is_not_asked_again() -> None:
    """Each is logged; the last one says so."""
    scripted = ScriptedLane()
    draft = lane(scripted)
    for _ in range(MAX_FAULTS):
        assert draft.status == "ok"
        assert await failing(draft, scripted) is None
    assert draft.status == "out of service"
    assert await draft.run(command()) is None
    assert len(scripted.commands) == MAX_FAULTS


async def test_a_success_forgives_the_failures_before_it() -> None:
    """Only failures in a row count."""
    scripted = ScriptedLane()
    draft = lane(scripted)
    for _ in range(2 * MAX_FAULTS):
        await failing(draft, scripted)
        running = asyncio.create_task(draft.run(command()))
        await settle()
        scripted.complete([])
        await running
    assert draft.status == "ok"


async def test_a_command_that_nobody_waits_for_is_a_fault_too_when_it_fails() -> None:
    """Such as books that do not balance when the last sequence was forgotten."""
    scripted = ScriptedLane()
    draft = lane(scripted)
    for _ in range(MAX_FAULTS):
        draft.tell(ForgetCommand((1,)))
        scripted.fail(AssertionError("a block is neither free nor held"))
    await settle()
    assert draft.status == "out of service"


async def test_a_draft_that_takes_too_long_is_asked_to_stop_first() -> None:
    """What it has by then is still of use."""
    scripted = ScriptedLane()
    draft, asked = lane(scripted, 0.0), command()
    running = asyncio.create_task(draft.run(asked))
    while not asked.stop.is_set():  # noqa: ASYNC110 - the stop word is a thread's, not the loop's
        await asyncio.sleep(0)
    scripted.complete(["half"])
    assert await running in (["half"], None)


async def test_a_draft_that_does_not_stop_is_left_alone_until_it_returns() -> None:
    """Nobody asks it meanwhile, its late result is thrown away, then it is asked again."""
    scripted = ScriptedLane()
    draft = lane(scripted, 0.0)
    assert await draft.run(command()) is None
    assert draft.status == "stuck"
    assert await draft.run(command()) is None
    assert len(scripted.commands) == 1
    scripted.complete(["late"])
    await settle()
    assert draft.status == "ok"
    assert draft.submit(command()) is not None
    assert len(scripted.commands) == 2


@pytest.mark.parametrize("late", [RuntimeError("late"), None])
async def test_a_late_end_of_any_kind_disturbs_nobody(late: RuntimeError | None) -> None:
    """Neither a late error nor one of a command whose result nobody needs is left unseen."""
    scripted = ScriptedLane()
    draft = lane(scripted, 0.0)
    await draft.run(command())
    draft.tell(ForgetCommand((1,)))
    for _ in range(2):
        scripted.fail(late) if late else scripted.complete(None)
    await settle()
    assert draft.status == "ok"


async def test_forgetting_is_queued_behind_a_command_that_is_stuck() -> None:
    """So that no memory is lost when it returns."""
    scripted = ScriptedLane()
    draft = lane(scripted, 0.0)
    await draft.run(command())
    draft.tell(ForgetCommand((7,)))
    assert scripted.pending[1] == ForgetCommand((7,))


class Draft:
    """A draft whose lanes and time are the test's."""

    def __init__(self, patience: float = 0.0) -> None:
        self.clock = ManualClock()
        self.lanes: list[ScriptedLane] = []
        self.lane = DraftLane(self.start, name="mine", patience=lambda: patience, clock=self.clock)

    def start(self) -> ScriptedLane:
        self.lanes.append(ScriptedLane(f"{len(self.lanes)}"))
        return self.lanes[-1]

    async def fails(self, times: int = MAX_FAULTS) -> None:
        """The next commands raise."""
        for _ in range(times):
            future = self.lane.submit(command())
            assert future is not None
            self.lanes[-1].fail(RuntimeError("no"))
            await self.lane.result(future, command())

    async def hangs(self) -> None:
        """A command is submitted and never comes back."""
        future = self.lane.submit(command())
        assert future is not None
        await self.lane.result(future, command())

    def serves_after(self, seconds: float) -> bool:
        """Whether it serves so much later, and not just before."""
        self.clock.advance(seconds - 0.001)
        served = self.lane.is_serving
        self.clock.advance(0.001)
        return not served and self.lane.is_serving


async def test_a_draft_that_failed_starts_again_after_a_pause_with_a_lane_of_its_own() -> None:
    """The old lane is closed; the new one is asked, and its first failure is its own first."""
    draft = Draft()
    await draft.fails()
    assert draft.lane.status == "out of service"
    assert draft.serves_after(FIRST_PAUSE)
    assert (draft.lane.status, draft.lane.num_restarts, len(draft.lanes)) == ("ok", 1, 2)
    assert draft.lanes[0].is_closed
    await draft.fails(MAX_FAULTS - 1)
    assert draft.lane.status == "ok"
    future = draft.lane.submit(command())
    assert future is not None
    draft.lanes[1].complete([1])
    assert await draft.lane.result(future, command()) == [1]


async def test_pauses_double_up_to_a_limit_and_a_steady_draft_begins_with_the_first_again() -> None:
    """A draft that never works is tried once a minute; one that worked for long is tried at once."""
    draft, pause = Draft(), FIRST_PAUSE
    for _ in range(10):
        await draft.fails()
        assert draft.serves_after(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
    draft.clock.advance(STEADY_SECONDS)
    await draft.fails()
    assert draft.serves_after(FIRST_PAUSE)


async def test_a_command_that_never_returns_is_left_with_its_thread() -> None:
    """First the draft is only stuck; then a fresh lane takes its place."""
    draft = Draft()
    await draft.hangs()
    assert draft.lane.status == "stuck"
    draft.clock.advance(HANGS_SECONDS)
    assert not draft.lane.is_serving
    assert draft.lane.status == "out of service"
    assert draft.serves_after(FIRST_PAUSE)
    assert [lane.is_alive for lane in draft.lanes] == [True, True]
    assert draft.lanes[0].pending


async def test_threads_that_hang_are_not_piled_up() -> None:
    """After a few the draft is given up for good, and nothing waits for any of them."""
    draft = Draft()
    for _ in range(MOST_HANGING + 1):
        await draft.hangs()
        draft.clock.advance(HANGS_SECONDS)
        assert not draft.lane.is_serving
        draft.clock.advance(LONGEST_PAUSE)
        draft.lane.submit(command())
    assert draft.lane.status == "given up"
    assert len(draft.lanes) == MOST_HANGING + 1
    draft.clock.advance(1e9)
    assert draft.lane.submit(command()) is None
    draft.lane.tell(ForgetCommand((1,)))
    draft.lane.close()


async def test_threads_that_come_back_after_all_are_not_held_against_it() -> None:
    """Only those that hang at the same time are counted."""
    draft = Draft()
    for _ in range(3 * MOST_HANGING):
        await draft.hangs()
        draft.clock.advance(HANGS_SECONDS)
        assert not draft.lane.is_serving
        draft.clock.advance(LONGEST_PAUSE)
        assert draft.lane.submit(command()) is not None
        draft.lanes[-1].complete(None)
        draft.lanes[-2].complete(None)
        draft.lanes[-2].is_alive = False
    assert draft.lane.status == "ok"


async def test_a_thread_that_died_is_replaced() -> None:
    """It will never answer, and is not asked first."""
    draft = Draft()
    draft.lanes[0].is_alive = False
    assert not draft.lane.is_serving
    assert draft.serves_after(FIRST_PAUSE)
    assert draft.lanes[0].commands == []


async def test_what_is_out_of_service_is_told_nothing() -> None:
    """A fresh lane has read nothing that it could forget."""
    draft = Draft()
    await draft.fails()
    draft.lane.tell(ForgetCommand((1,)))
    assert ForgetCommand((1,)) not in draft.lanes[0].commands


async def test_the_log_names_the_draft_and_says_when_it_comes_back(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Out of service, and in service again."""
    draft = Draft()
    await draft.fails()
    assert draft.serves_after(FIRST_PAUSE)
    text = "".join(capsys.readouterr())
    assert "the draft is out of service" in text
    assert "the draft starts again" in text
    assert "mine" in text

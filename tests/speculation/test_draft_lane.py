"""A draft that fails or hangs costs only its proposals. Patience is the test's."""

from __future__ import annotations

import asyncio

import pytest

from ssd_runtime.messages import StopWord
from ssd_runtime.speculation.commands import DraftCommand, ForgetCommand
from ssd_runtime.speculation.draft_lane import MAX_FAULTS, DraftLane
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

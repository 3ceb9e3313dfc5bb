"""A mode in a process of its own: it answers, and however it ends, the run ends with a message."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Iterable
from functools import partial

import pytest

from ssd_runtime.bench.answering import Block, Recorder
from ssd_runtime.bench.process import EngineProcess, MakeEngine
from ssd_runtime.errors import ComputeError, ModelError, SSDError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.testing.fake_engine import FakeEngine, Step
from ssd_runtime.types import Request

WARM_UP = Request("warm-up", prompt="hello")


def words(request: Request) -> Iterable[Step]:
    """What a prompt says is what happens, in the process that answers."""
    match request.prompt:
        case "die":
            os._exit(3)
        case "fail":
            return [ComputeError("not finite")]
        case "wait":
            return [asyncio.Event()]
        case text:
            return str(text).split(" ")


def fake() -> tuple[AnsweringEngine, Recorder]:
    return FakeEngine(words), Recorder()


def no_model(message: str) -> tuple[AnsweringEngine, Recorder]:
    raise ModelError(message)


def process(make: MakeEngine = fake) -> EngineProcess:
    return EngineProcess("ssd", "0 + 1", make, WARM_UP)


def block(*texts: str) -> Block:
    return Block(tuple(Request(text, prompt=text) for text in texts), concurrency=2)


async def test_blocks_are_answered_by_another_process_as_often_as_asked() -> None:
    """The pieces have times, and the peak memory is that process's own."""
    async with process() as mode:
        first = await mode.answer(block("a b c", "d"))
        second = await mode.answer(block("e f"))
    assert [len(answer.token_ids) for answer in first.answers] == [3, 1]
    assert [len(answer.pieces) for answer in second.answers] == [2]
    assert first.peak_bytes > 1e6


async def test_what_an_engine_raises_is_raised_here() -> None:
    """With its own type and message."""
    with pytest.raises(ComputeError, match="not finite"):
        async with process() as mode:
            await mode.answer(block("fail"))


async def test_a_model_that_cannot_be_loaded_stops_the_start() -> None:
    """Before anything is measured."""
    with pytest.raises(ModelError, match=r"no file nowhere\.gguf"):
        async with process(partial(no_model, "no file nowhere.gguf")):
            pass


async def test_a_process_that_dies_is_named_with_its_status() -> None:
    """Out of memory, for example: nobody waits for ever."""
    with pytest.raises(SSDError, match="mode ssd: its process ended with status 3"):
        async with process() as mode:
            await mode.answer(block("die"))


async def test_a_cancelled_bench_ends_its_process_at_once() -> None:
    """Also in the midst of a block without end."""

    async def wait_for_ever() -> None:
        async with process() as mode, asyncio.timeout(0):
            await mode.answer(block("wait"))

    with pytest.raises(TimeoutError):
        await wait_for_ever()
    assert multiprocessing.active_children() == []


async def test_ctrl_c_is_left_to_whoever_started_the_process() -> None:
    """A terminal sends it to both; the process ends when it is told to, not in the midst of a message."""
    async with process() as mode:
        (child,) = multiprocessing.active_children()
        os.kill(child.pid or 0, signal.SIGINT)
        result = await mode.answer(block("still there"))
    assert len(result.answers) == 1

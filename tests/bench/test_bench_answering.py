"""One block answered: times from a clock of the test's own, order, concurrency, records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from ssd_runtime.bench.answering import Block, Recorder, answer_block
from ssd_runtime.clock import ManualClock
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.errors import ComputeError
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import open_trace, read_trace
from ssd_runtime.testing.fake_engine import FakeEngine, Step, echo
from ssd_runtime.types import Request

COMMAND = CommandRecord("target", "verify", 1, 1, 1.0, 2.0)
ROUND = RoundRecord("a", "cache", True, 2, 1, 2)


def block(*texts: str, concurrency: int = 1) -> Block:
    return Block(tuple(Request(text, prompt=text) for text in texts), concurrency)


async def test_every_piece_has_the_time_at_which_it_came() -> None:
    """Seconds of the clock: submission, then each piece with tokens; the empty last piece is none."""
    clock = ManualClock(10.0)

    def script(request: Request) -> Iterable[Step]:
        for wait, word in ((2.0, "one"), (0.5, "two"), (0.25, "three")):
            clock.advance(wait)
            yield word

    async with FakeEngine(script) as engine:
        (answer,) = (await answer_block(engine, Recorder(), block("a"), clock)).answers
    assert answer.submitted == 10.0
    assert answer.pieces == ((12.0, 1), (12.5, 1), (12.75, 1))
    assert answer.token_ids == (1, 2, 3)


@pytest.mark.parametrize("concurrency", [1, 2, 4])
async def test_no_more_requests_are_in_flight_than_asked_for(concurrency: int) -> None:
    """And as many as that; answers come in the order of the block."""
    async with FakeEngine(echo) as engine:
        result = await answer_block(engine, Recorder(), block(*"abcdefgh", concurrency=concurrency))
    assert engine.most_running == concurrency
    assert [answer.request_id for answer in result.answers] == list("abcdefgh")
    assert result.peak_bytes > 1e6


async def test_a_failed_request_ends_the_block() -> None:
    """With its own error; the others are cancelled."""
    never = asyncio.Event()

    def script(request: Request) -> Iterable[Step]:
        return [ComputeError("not finite")] if request.id == "b" else ["x", never]

    async with FakeEngine(script) as engine:
        with pytest.raises(ComputeError, match="not finite"):
            await answer_block(engine, Recorder(), block("a", "b", concurrency=2))
    assert engine.cancelled == ["a"]


async def test_a_pass_has_the_records_of_its_own_time_only(tmp_path: Path) -> None:
    """What came before the block is not counted, and the trace has everything."""
    recorder = Recorder(open_trace(tmp_path / "t.json", ManualClock()))
    recorder.command(COMMAND)

    def script(request: Request) -> Iterable[Step]:
        recorder.command(COMMAND)
        recorder.round(ROUND)
        return ["x"]

    async with FakeEngine(script) as engine:
        result = await answer_block(engine, recorder, block("a"))
    recorder.close()
    assert (result.commands, result.rounds) == ((COMMAND,), (ROUND,))
    assert read_trace(tmp_path / "t.json") == ([COMMAND, COMMAND], [ROUND])

"""One block answered by one engine: what came when, and what the lanes did meanwhile."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import RecordSink
from ssd_runtime.types import Request

RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True, slots=True)
class Block:
    """Requests that are answered together, at most `concurrency` at a time."""

    requests: tuple[Request, ...]
    concurrency: int


@dataclass(frozen=True, slots=True)
class Streamed:
    """One answer as its reader saw it. pieces: (when it came, tokens in it), those with tokens only."""

    request_id: str
    token_ids: tuple[int, ...]
    submitted: float
    pieces: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """Everything that one block gave. peak_bytes: the process's most resident memory up to its end."""

    answers: tuple[Streamed, ...]
    commands: tuple[CommandRecord, ...] = ()
    rounds: tuple[RoundRecord, ...] = ()
    peak_bytes: int = 0


class Recorder:
    """Keeps an engine's records, and hands them on to a trace where there is one."""

    def __init__(self, trace: RecordSink | None = None) -> None:
        self.commands: list[CommandRecord] = []
        self.rounds: list[RoundRecord] = []
        self._trace = trace

    def command(self, record: CommandRecord) -> None:
        """See `RecordSink`."""
        self.commands.append(record)
        if self._trace is not None:
            self._trace.command(record)

    def round(self, record: RoundRecord) -> None:
        """See `RecordSink`."""
        self.rounds.append(record)
        if self._trace is not None:
            self._trace.round(record)

    def close(self) -> None:
        """See `RecordSink`."""
        if self._trace is not None:
            self._trace.close()

    def clear(self) -> None:
        """Forget what was recorded so far."""
        self.commands, self.rounds = [], []


async def answer_block(
    engine: AnsweringEngine, recorder: Recorder, block: Block, clock: Clock = monotonic
) -> Pass:
    """Answer every request of `block`; the first error of any of them is raised."""
    recorder.clear()
    slots = asyncio.Semaphore(block.concurrency)

    async def answer(request: Request) -> Streamed:
        async with slots:
            return await _streamed(engine, request, clock)

    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(answer(request)) for request in block.requests]
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
    answers = tuple(task.result() for task in running)
    return Pass(answers, tuple(recorder.commands), tuple(recorder.rounds), _peak_bytes())


async def _streamed(engine: AnsweringEngine, request: Request, clock: Clock) -> Streamed:
    submitted = clock()
    token_ids: list[int] = []
    pieces: list[tuple[float, int]] = []
    async for piece in engine.generate(request):
        if piece.token_ids:
            pieces.append((clock(), len(piece.token_ids)))
            token_ids += piece.token_ids
    return Streamed(request.id, tuple(token_ids), submitted, tuple(pieces))


def _peak_bytes() -> int:
    import resource  # not on Windows, where the rest of this module may still be imported

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT

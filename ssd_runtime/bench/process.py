"""A mode in a process of its own.

So its peak memory is its own, and no thread pool, allocator or interpreter lock of one mode is in the
way of another. The processes take turns; the one that is not asked sleeps.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from ssd_runtime.bench.answering import Block, Pass, Recorder, answer_block
from ssd_runtime.engine.thread import new_event_loop
from ssd_runtime.errors import SSDError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.memory.heaps import tidy_heaps
from ssd_runtime.types import Request

CLOSE_SECONDS = 10.0

MakeEngine = Callable[[], tuple[AnsweringEngine, Recorder]]
"""Gives an engine that is not started, and what it reports to. Must survive pickling: see `spawn`."""


class EngineProcess:
    """A mode's engine in another process, as an async context manager that starts and ends it."""

    def __init__(self, name: str, cores: str, make: MakeEngine, warm_up: Request) -> None:
        """`cores`: what the column says. `warm_up` is answered once the engine is there."""
        self.name = name
        self.cores = cores
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        self._connection, self._theirs = context.Pipe()
        self._process = context.Process(
            target=serve, args=(self._theirs, make, warm_up), name=f"bench-{name}", daemon=True
        )

    async def __aenter__(self) -> Self:
        with _interrupts_ignored():
            self._process.start()
        self._theirs.close()
        try:
            await self._result()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            with suppress(OSError):  # it may have died since
                self._connection.send(None)
            await asyncio.to_thread(self._process.join, CLOSE_SECONDS)
        await self._end()

    async def answer(self, block: Block) -> Pass:
        """See `answer_block`. Raises what the engine raised, `SSDError` where its process died."""
        result: Pass = await self._result(block)
        return result

    async def _result(self, block: Block | None = None) -> Any:
        """What the other process says next, after it was given `block` where there is one."""
        try:
            if block is not None:
                self._connection.send(block)
            result = await asyncio.to_thread(self._connection.recv)
        except (EOFError, OSError):
            await asyncio.to_thread(self._process.join, CLOSE_SECONDS)
            raise SSDError(
                f"mode {self.name}: its process ended with status {self._process.exitcode}; "
                "what it wrote to stderr stands above"
            ) from None
        if isinstance(result, SSDError):
            raise result
        return result

    async def _end(self) -> None:
        if self._process.is_alive():
            self._process.kill()  # which also ends a thread that waits for its answer
        await asyncio.to_thread(self._process.join)


def serve(connection: Connection, make: MakeEngine, warm_up: Request) -> None:
    """The other process: answer blocks until None comes, or whoever asked is gone."""
    tidy_heaps()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(connection, make, warm_up))


async def _serve(connection: Connection, make: MakeEngine, warm_up: Request) -> None:
    try:
        engine, recorder = make()
        async with engine:
            await answer_block(engine, recorder, Block((warm_up,), 1))
            connection.send(None)
            while (block := await asyncio.to_thread(_next_block, connection)) is not None:
                connection.send(await answer_block(engine, recorder, block))
    except SSDError as error:
        connection.send(error)


def _next_block(connection: Connection) -> Block | None:
    try:
        block: Block | None = connection.recv()
    except EOFError:
        return None
    return block


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ctrl-C reaches every process of a terminal; what starts here leaves it to the one that started it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""How a command runs an engine: loading, Ctrl-C, notes on stderr."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from ssd_runtime.cli.progress import WaitLine, ticking
from ssd_runtime.engine.thread import new_event_loop
from ssd_runtime.errors import SSDError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.memory.heaps import tidy_heaps
from ssd_runtime.settings.load import Loaded

INTERRUPTED = 130


def note(text: str) -> None:
    """Write one line to stderr; a stderr that is closed takes nothing."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return


def descriptor(name: str) -> int:
    """The descriptor of `stdin` or `stdout`; raises `SSDError` where the caller closed it."""
    stream = getattr(sys, name)
    if stream is None:
        raise SSDError(f"{name} is closed; connect it, for example to /dev/null")
    return int(stream.fileno())


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a command to its exit status; Ctrl-C cancels it and gives 130."""
    tidy_heaps()
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_interruptible(main))
    except (KeyboardInterrupt, asyncio.CancelledError):
        note("interrupted")
        return INTERRUPTED


async def _interruptible(main: Coroutine[Any, Any, int]) -> int:
    """`main`, cancelled by SIGINT.

    The loop's own handler wakes it through a descriptor. The one that `asyncio.run` installs does not,
    and a signal that comes just before the loop falls asleep would wait for the next event.
    """
    task = asyncio.current_task()
    if task is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, task.cancel)
    return await main


def configured_engine(
    loaded: Loaded, line: WaitLine, trace: Path | None = None, plugins: Sequence[object] = ()
) -> AnsweringEngine:
    """The real engine, not started. Importing it loads torch, which takes a while."""
    from ssd_runtime.app import Engine

    return Engine(loaded, progress=line, trace=trace, plugins=plugins)


@asynccontextmanager
async def started(make: Callable[[], AnsweringEngine], line: WaitLine) -> AsyncIterator[AnsweringEngine]:
    """The engine that `make` gives, loaded and running, with its waits shown on `line`."""
    async with ticking(line):
        with _interrupted_at_once(line):
            line("starting", 0, 0)
            engine = await asyncio.to_thread(make)
            await engine.__aenter__()
        line.clear()
        try:
            yield engine
        finally:
            await engine.__aexit__(None, None, None)


@contextmanager
def _interrupted_at_once(line: WaitLine) -> Iterator[None]:
    """Let Ctrl-C end the process without waiting for the thread that loads the model.

    Nothing is lost: a cache entry that is being written is only put in place when it is whole.
    """

    def leave(number: int, frame: object) -> None:
        line.clear()
        note("interrupted")
        os._exit(INTERRUPTED)

    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

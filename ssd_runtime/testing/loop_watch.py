"""How long an event loop is blocked, on machines where others work too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.005
_TASKS = Path("/proc/self/task")


async def watched(main: Coroutine[Any, Any, int], counts: Callable[[], bool]) -> int:
    """`main`; at its end the log says `watched`, with the longest time that its loop was blocked.

    Only while `counts` holds. Time in which a thread of this process waited for a core is left out: then it
    is not the program that blocks the loop, but the machine that is full.
    """
    longest = 0.0

    async def watch() -> None:
        nonlocal longest
        while True:
            before, started, counted = _waits(), time.perf_counter(), counts()
            await asyncio.sleep(TICK_SECONDS)
            blocked = time.perf_counter() - started - TICK_SECONDS
            if counted and blocked > longest:
                longest = max(longest, blocked - _longest_wait(before))

    watching = asyncio.create_task(watch())
    try:
        return await main
    finally:
        watching.cancel()
        log.info("watched", longest_seconds=longest)


def _waits() -> Mapping[str, float]:
    """Seconds that each thread has waited for a core, ready to run; empty where nothing tells."""
    waits = {}
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError):  # it may have ended
            waits[task.name] = int((task / "schedstat").read_text().split()[1]) / 1e9
    return waits


def _longest_wait(before: Mapping[str, float]) -> float:
    return max((wait - before[task] for task, wait in _waits().items() if task in before), default=0.0)

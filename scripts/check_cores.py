"""Seen from the operating system: whether the two lanes really work at the same time.

    python -m scripts.check_cores [--max-tokens 96]

Answers a prompt in mode `ssd`, first with target and draft on a core each, then both on one, and reads
from the kernel how long each lane's thread ran in windows of 50 ms. With a core each both must be
busy in most windows, on one core in none. Exit status 1 if not. Needs Linux and two free cores.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from ssd_runtime.app import Engine
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Request, SamplingParams

WINDOW_SECONDS = 0.05
BUSY = 0.5
LANES = ("ssd-target", "ssd-draft")
TASKS = Path("/proc/self/task")


def lane_threads() -> list[int]:
    """The kernel's thread id of each lane, in the order of `LANES`."""
    known = {thread.name: thread.native_id or 0 for thread in threading.enumerate()}
    return [known[name] for name in LANES]


def ran(thread: int) -> float:
    """Seconds that this thread has run so far."""
    return int((TASKS / str(thread) / "schedstat").read_text().split()[0]) / 1e9


class Watcher:
    """Samples the lanes' run time until stopped; `windows` holds both lanes' shares of each window."""

    def __init__(self) -> None:
        self.windows: list[tuple[float, ...]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        threads = lane_threads()
        before, started = list(map(ran, threads)), time.perf_counter()
        while not self._stop.wait(WINDOW_SECONDS):
            after, now = list(map(ran, threads)), time.perf_counter()
            shares = [(b - a) / (now - started) for a, b in zip(before, after, strict=True)]
            self.windows.append(tuple(shares))
            before, started = after, now


async def windows(target: str, draft: str, max_tokens: int) -> Sequence[tuple[float, ...]]:
    """Both lanes' shares of every window while one answer is decoded."""
    overrides = ["scheduler.policy=ssd", f"placement.target={target}", f"placement.draft={draft}"]
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    request = Request("0", prompt="Tell me a story.", params=params)
    async with Engine(load_settings(None, overrides, {})) as engine:
        await engine.complete(request)
        with Watcher() as watcher:
            await engine.complete(request)
    return watcher.windows


def both_busy(shares: Sequence[tuple[float, ...]]) -> float:
    """The part of the windows in which each lane ran for at least half of the time, and more in sum."""
    busy = [min(window) >= BUSY and sum(window) > 1 + BUSY / 2 for window in shares]
    return sum(busy) / len(busy)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--max-tokens", type=int, default=96)
    options = parser.parse_args()
    apart = both_busy(asyncio.run(windows("cpu:0", "cpu:1", options.max_tokens)))
    shared = both_busy(asyncio.run(windows("cpu:0", "cpu:0", options.max_tokens)))
    sys.stdout.write(f"both lanes busy: a core each {apart:.0%} of windows, one core {shared:.0%}\n")
    return 0 if apart > 0.5 and shared == 0 else 1


if __name__ == "__main__":
    sys.exit(main())

"""Time as an argument: the engine takes a `Clock`, tests give it one they move by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Returns seconds that never go backwards."""

    def __call__(self) -> float: ...


monotonic: Clock = time.perf_counter


class ManualClock:
    """A clock for tests: it stands still until `advance` moves it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds`."""
        self.now += seconds

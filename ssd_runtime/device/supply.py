"""One role's lane, and a fresh one in its place when it is of no more use.

A fresh lane has a worker of its own, made on its own thread from weights that are loaded already. What
the old worker kept (KV, what was read) goes with it. A thread that hangs cannot be ended: it is left to
itself, with all that it holds, and so only few of them are put up with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

from ssd_runtime.device.lane import Worker

MOST_HANGING = 3


class LaneLike(Protocol):
    """Takes commands, returns awaitables."""

    def submit(self, command: Any) -> asyncio.Future[Any]: ...


class RoleLane(LaneLike, Protocol):
    """A lane that can be given up; `ssd_runtime.device.lane.Lane`."""

    @property
    def is_alive(self) -> bool: ...
    def close(self) -> None: ...
    def join(self, timeout: float | None = None) -> bool: ...


class TooManyHangingError(Exception):
    """Threads of lanes that were replaced still hang; another one would be no better."""


class LaneSupply:
    """The lane in use, and those before it that did not end. `start` makes a lane; it does not block."""

    def __init__(self, start: Callable[[], RoleLane]) -> None:
        self.lane = start()
        self.num_restarts = 0
        self._start = start
        self._before: WeakSet[RoleLane] = WeakSet()  # what a lane holds is freed with its thread

    @property
    def num_hanging(self) -> int:
        """Lanes given up whose thread still runs."""
        return sum(lane.is_alive for lane in self._before)

    def replace(self) -> RoleLane:
        """A fresh lane in place of the one in use. Raises `TooManyHangingError`, and what starting raises."""
        self.lane.close()
        if self.num_hanging >= MOST_HANGING:
            raise TooManyHangingError(f"{MOST_HANGING} threads that were given up still hang")
        self._before.add(self.lane)
        self.lane = self._start()
        self.num_restarts += 1
        return self.lane

    def close(self) -> None:
        """End the lane in use; the others were ended when they were replaced."""
        self.lane.close()

    def join(self, timeout: float) -> bool:
        """Wait for the thread of the lane in use; False if it still runs after `timeout` seconds."""
        return self.lane.join(timeout)


class LateWorker:
    """A worker that is made by the first command, on the lane's own thread."""

    def __init__(self, make: Callable[[], Worker]) -> None:
        self._make = make
        self._worker: Worker | None = None

    def execute(self, command: Any) -> Any:
        """Carry out one command; raises what making the worker raises, and tries again with the next."""
        if self._worker is None:
            self._worker = self._make()
        return self._worker.execute(command)

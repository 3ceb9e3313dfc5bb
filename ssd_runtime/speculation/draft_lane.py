"""The draft's lane as the engine's loop sees it: a draft that fails or hangs costs only its proposals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.device.supply import LaneSupply, RoleLane, TooManyHangingError

log = structlog.get_logger(__name__)

MAX_FAULTS = 3
HANGS_SECONDS = 30.0
"""How long a command may be overdue before its thread is taken to hang for ever."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0
STEADY_SECONDS = 60.0
"""A draft that served so long starts with the first pause again."""

OK, STUCK, OUT, GIVEN_UP = "ok", "stuck", "out of service", "given up"


class DraftLane:
    """Submits commands to the draft, takes it out of service when it is of no use, and starts it again.

    A command that raises is a fault; after `MAX_FAULTS` in a row the draft is out of service. A command
    that outlives `patience()` seconds is asked to stop. If it outlives them once more it is left alone: the
    draft is busy until it returns, and its late result is thrown away. One that does not return, and a
    thread that has died, put the draft out of service too.

    After a pause, which doubles from each time to the next, a fresh lane serves; it has read nothing.
    """

    def __init__(
        self,
        start: Callable[[], RoleLane],
        *,
        name: str,
        patience: Callable[[], float],
        clock: Clock = monotonic,
    ) -> None:
        """`start` makes a lane with a worker of its own; it does not block."""
        self.name = name
        self._supply = LaneSupply(start)
        self._patience = patience
        self._clock = clock
        self._faults = 0
        self._stuck: asyncio.Future[Any] | None = None
        self._overdue_since = 0.0
        self._pause = FIRST_PAUSE
        self._started = clock()
        self._retry_at: float | None = None
        self._given_up = False

    @property
    def status(self) -> str:
        """`ok`, `stuck`, `out of service` (until a fresh one starts) or `given up` (none will)."""
        if self._given_up:
            return GIVEN_UP
        if self._retry_at is not None:
            return OUT
        return STUCK if self._stuck is not None and not self._stuck.done() else OK

    @property
    def is_serving(self) -> bool:
        """Whether a command would be started now."""
        self._look_after()
        return self.status == OK

    @property
    def num_restarts(self) -> int:
        """Fresh lanes so far."""
        return self._supply.num_restarts

    def submit(self, command: Any) -> asyncio.Future[Any] | None:
        """Start a command; None when the draft cannot be asked."""
        return self._supply.lane.submit(command) if self.is_serving else None

    def tell(self, command: Any) -> None:
        """Queue a command whose result nobody needs, even behind one that is stuck."""
        if self.status in (OK, STUCK):
            self._supply.lane.submit(command).add_done_callback(lambda told: self._hear(told, command))

    async def run(self, command: Any) -> Any | None:
        """Submit and wait; None when the draft failed or was not asked."""
        future = self.submit(command)
        return None if future is None else await self.result(future, command)

    async def result(self, future: asyncio.Future[Any], command: Any) -> Any | None:
        """The result of a submitted command, or None: it raised, or it takes too long."""
        if not future.done() and not await self._is_done_in_time(future, command):
            return None
        error = future.exception()
        if error is not None:
            self._count_fault(error, command)
            return None
        self._faults = 0
        return future.result()

    async def _is_done_in_time(self, future: asyncio.Future[Any], command: Any) -> bool:
        patience = self._patience()
        if await _is_done_within(future, patience):
            return True
        command.stop.set()
        if await _is_done_within(future, patience):
            return True
        self._leave(future, command, 2 * patience)
        return False

    def close(self) -> None:
        """End the lane; does not wait."""
        self._supply.close()

    def join(self, timeout: float) -> bool:
        """Wait for the lane's thread to end; not for one that hangs."""
        return self._supply.join(timeout if self.status == OK else 0.0)

    def _leave(self, future: asyncio.Future[Any], command: Any, waited: float) -> None:
        log.warning("the draft takes too long", draft=self.name, command=command.kind, waited=waited)
        self._stuck, self._overdue_since = future, self._clock()
        future.add_done_callback(_retrieve)

    def _hear(self, told: asyncio.Future[Any], command: Any) -> None:
        error = None if told.cancelled() else told.exception()
        if error is not None and self.status in (OK, STUCK):
            self._count_fault(error, command)

    def _count_fault(self, error: BaseException, command: Any) -> None:
        self._faults += 1
        log.warning("the draft failed", draft=self.name, command=command.kind, error=repr(error))
        if self._faults >= MAX_FAULTS:
            self._take_out(f"{MAX_FAULTS} failures in a row")

    def _look_after(self) -> None:
        """Notice what has died or hangs, and start a fresh lane when it is time."""
        if self._retry_at is not None:
            if self._clock() >= self._retry_at and not self._given_up:
                self._restart()
        elif self.status == STUCK and self._clock() - self._overdue_since >= HANGS_SECONDS:
            self._take_out("a command hangs")
        elif not self._supply.lane.is_alive:
            self._take_out("its thread has died")

    def _take_out(self, reason: str) -> None:
        if self._retry_at is not None:
            return
        now = self._clock()
        if now - self._started >= STEADY_SECONDS:
            self._pause = FIRST_PAUSE
        self._retry_at = now + self._pause
        log.error("the draft is out of service", draft=self.name, reason=reason, pause=self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _restart(self) -> None:
        try:
            self._supply.replace()
        except TooManyHangingError as error:
            self._given_up = True
            log.error("the draft is given up", draft=self.name, reason=str(error))
            return
        self._faults, self._stuck, self._retry_at = 0, None, None
        self._started = self._clock()
        log.info("the draft starts again", draft=self.name, restarts=self.num_restarts)


async def _is_done_within(future: asyncio.Future[Any], seconds: float) -> bool:
    await asyncio.wait({future}, timeout=seconds)
    return future.done()


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a result as seen, so that nothing is logged when the future is collected."""
    if not future.cancelled():
        future.exception()

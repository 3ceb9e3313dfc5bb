"""The draft's lane as the engine's loop sees it: a draft that fails or hangs costs only its proposals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import structlog

log = structlog.get_logger(__name__)

MAX_FAULTS = 3


class LaneLike(Protocol):
    """Takes commands, returns awaitables."""

    def submit(self, command: Any) -> asyncio.Future[Any]: ...


class DraftLane:
    """Submits commands to the draft, and takes it out of service when it is of no use.

    A command that raises is a fault; after `MAX_FAULTS` in a row the draft is not asked again. A
    command that outlives `patience()` seconds is asked to stop. If it outlives them once more it is
    left alone: the draft is busy until it returns, and its late result is thrown away.
    """

    def __init__(self, lane: LaneLike, *, name: str, patience: Callable[[], float]) -> None:
        self.name = name
        self._lane = lane
        self._patience = patience
        self._faults = 0
        self._stuck: asyncio.Future[Any] | None = None

    @property
    def status(self) -> str:
        """`ok`, `stuck` or `out of service`."""
        if self._faults >= MAX_FAULTS:
            return "out of service"
        return "stuck" if self._stuck is not None and not self._stuck.done() else "ok"

    def submit(self, command: Any) -> asyncio.Future[Any] | None:
        """Start a command; None when the draft cannot be asked."""
        return self._lane.submit(command) if self.status == "ok" else None

    def tell(self, command: Any) -> None:
        """Queue a command whose result nobody needs, even behind one that is stuck."""
        self._lane.submit(command).add_done_callback(_retrieve)

    async def run(self, command: Any) -> Any | None:
        """Submit and wait; None when the draft failed or was not asked."""
        future = self.submit(command)
        return None if future is None else await self.result(future, command)

    async def result(self, future: asyncio.Future[Any], command: Any) -> Any | None:
        """The result of a submitted command, or None: it raised, or it takes too long."""
        patience = self._patience()
        await asyncio.wait({future}, timeout=patience)
        command.stop.set()
        await asyncio.wait({future}, timeout=patience)
        if not future.done():
            self._leave(future, command, 2 * patience)
            return None
        error = future.exception()
        if error is not None:
            self._count_fault(error, command)
            return None
        self._faults = 0
        return future.result()

    def _leave(self, future: asyncio.Future[Any], command: Any, waited: float) -> None:
        log.warning("the draft takes too long", draft=self.name, command=command.kind, waited=waited)
        self._stuck = future
        future.add_done_callback(_retrieve)

    def _count_fault(self, error: BaseException, command: Any) -> None:
        self._faults += 1
        log.warning("the draft failed", draft=self.name, command=command.kind, error=repr(error))
        if self._faults == MAX_FAULTS:
            log.error("the draft is out of service", draft=self.name, faults=MAX_FAULTS)


def _retrieve(future: asyncio.Future[Any]) -> None:
    """Mark a result as seen, so that nothing is logged when the future is collected."""
    if not future.cancelled():
        future.exception()

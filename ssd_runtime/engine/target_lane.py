"""The target's lane as the engine's loop sees it: watched, and replaced by a fresh one when it failed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ssd_runtime.device.supply import LaneSupply, RoleLane, TooManyHangingError
from ssd_runtime.errors import ComputeError, EngineError
from ssd_runtime.messages import Draw, VerifyCommand, VerifyRow

log = structlog.get_logger(__name__)

PAUSES = (0.0, 1.0, 2.0, 4.0, 8.0)
"""Seconds before each attempt to start the target again; after the last one it is given up."""
PASS_BEATS = 60
"""Beats of the engine's loop that a pass may take, beside one for each of its tokens: about a second each."""
LAST_BEATS = 10
"""Beats that a pass may still take when the engine is closing."""

OK, RESTARTING, FAILING = "ok", "restarting", "failing"

_PROBED = VerifyRow(token_ids=(0,), drafts=(), start=0, block_table=(0,), draw=Draw(0, 0.0))
PROBE = VerifyCommand((_PROBED,), kind="probe")
"""A pass over one token, in the first block of memory that nobody uses yet."""


class TargetLane:
    """Submits commands to the target. Beats instead of seconds, so that a process that was stopped for a
    while and goes on has lost no time.
    """

    def __init__(self, start: Callable[[], RoleLane], pauses: Sequence[float] = PAUSES) -> None:
        """`start` makes a lane with a worker and KV of its own; it does not block."""
        self.status = OK
        self._supply = LaneSupply(start)
        self._pauses = pauses
        self._pass: asyncio.Future[Any] | None = None
        self._command = PROBE
        self._beats_left = 0  # beside one for each of the command's tokens, which nobody counts before a beat

    @property
    def num_restarts(self) -> int:
        """Fresh lanes so far."""
        return self._supply.num_restarts

    def submit(self, command: Any) -> asyncio.Future[Any]:
        """Queue a command; a pass fails with `ComputeError` if the lane never answers."""
        future = self._supply.lane.submit(command)
        if isinstance(command, VerifyCommand):
            self._pass, self._command, self._beats_left = future, command, PASS_BEATS
        return future

    def beat(self) -> None:
        """About a second has passed: look after the pass in hand."""
        if self._pass is None or self._pass.done():
            return
        self._beats_left -= 1
        if not self._supply.lane.is_alive:
            self._pass.set_exception(ComputeError("the thread of its lane has died"))
        elif self._beats_left + self._command.num_tokens < 0:
            self._pass.set_exception(ComputeError("it takes too long; see the log"))

    def hurry(self) -> None:
        """The engine is closing: wait for the pass in hand, but not much longer."""
        self._beats_left = min(self._beats_left, LAST_BEATS - self._command.num_tokens)

    async def restart(self, closing: asyncio.Event) -> None:
        """Put a fresh lane in place of the one that failed, unless `closing` is set meanwhile.

        It serves when it has made a pass. Raises `EngineError` when none does after the last pause.
        """
        self.status = RESTARTING
        for pause in self._pauses:
            if await _is_set_within(closing, pause):
                return
            try:
                self._supply.replace()
                await self.submit(PROBE)
            except TooManyHangingError as error:
                raise EngineError(f"the target cannot be started again: {error}") from error
            except Exception as error:
                self.status = FAILING
                log.error("the target did not start again", error=repr(error))
            else:
                self.status = OK
                log.warning("the target serves again", restarts=self.num_restarts)
                return
        raise EngineError(f"the target could not be started again, after {len(self._pauses)} attempts")

    def close(self) -> None:
        """End the lane; does not wait."""
        self._supply.close()

    def join(self, timeout: float) -> bool:
        """Wait for the lane's thread to end; False if it still runs."""
        return self._supply.join(timeout)


async def _is_set_within(event: asyncio.Event, seconds: float) -> bool:
    if seconds > 0 and not event.is_set():
        try:
            await asyncio.wait_for(event.wait(), seconds)
        except TimeoutError:
            return False
    return event.is_set()

"""What ends a request early: its client going away, its deadline, the server's stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Receive

from ssd_runtime.errors import EngineClosedError
from ssd_runtime.server.errors import ClientGoneError, DeadlineError


class Reason:
    """Cancels a task once, and remembers why; as `asyncio.timeout` does, for any reason."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self.error: Exception | None = None
        self._task = task

    def end(self, error: Exception) -> None:
        """End the task's work with `error`, unless something else has ended it already."""
        if self.error is None:
            self.error = error
            self._task.cancel()

    def is_why(self) -> bool:
        """Whether the cancellation that was just caught is this one."""
        return self.error is not None and self._task.uncancel() == 0


@asynccontextmanager
async def ending_early(
    receive: Receive, stop: asyncio.Future[None], seconds: float | None
) -> AsyncIterator[Reason]:
    """Cancel the body when the client goes, `stop` is set, or `seconds` have passed; or for another reason.

    Raises `ClientGoneError`, `EngineClosedError` or `DeadlineError` in its place. The request's body
    must have been received.
    """
    task = asyncio.current_task()
    assert task is not None
    reason = Reason(task)
    gone = asyncio.create_task(_until_gone(receive, reason))
    timer = None
    if seconds is not None:
        late = DeadlineError(f"the request took longer than {seconds:g} s (server.request_timeout)")
        timer = asyncio.get_running_loop().call_later(seconds, reason.end, late)

    def stopped(_: object) -> None:
        reason.end(EngineClosedError("the server is stopping; the request was cancelled"))

    stop.add_done_callback(stopped)
    try:
        yield reason
    except asyncio.CancelledError:
        if reason.is_why() and reason.error is not None:
            raise reason.error from None
        raise
    finally:
        stop.remove_done_callback(stopped)
        gone.cancel()
        if timer is not None:
            timer.cancel()


async def _until_gone(receive: Receive, reason: Reason) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reason.end(ClientGoneError())

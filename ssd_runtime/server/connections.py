"""Connections that nobody can hold: by asking slowly, by asking nothing, or by reading nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0
"""How long a client may take to send the head of a request, once it is its turn."""
STUCK_SECONDS = 60.0
"""How long a client may take nothing of an answer that is complete."""
BREAK_OFF = "break_off"
"""Under this name a request's `state` has what closes its connection."""


class Connection(H11Protocol):
    """HTTP/1.1 with time limits where uvicorn has none.

    The limits of a body are in `bodies.py`, those of an answer that is still being made in `replies.py`.
    """

    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has come."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, BREAK_OFF: transport.abort}
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone."""
        self._stop_expecting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The client has sent something."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_expecting()
        elif self._head_timer is None:
            self._expect_head()

    def on_response_complete(self) -> None:
        """An answer has been handed over to the system, or waits for the client to make room."""
        super().on_response_complete()
        self._check_taken(None)

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def _stop_expecting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _check_taken(self, before: int | None) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting and waiting == before:
            self.transport.abort()
        elif waiting:
            self.loop.call_later(STUCK_SECONDS, self._check_taken, waiting)


async def break_off(scope: Scope) -> None:
    """Close the connection of a request at once; what was not taken is lost."""
    abort: Any = scope.get("state", {}).get(BREAK_OFF)
    if abort is not None:
        abort()
        await asyncio.sleep(0)  # so that the server knows before the application returns

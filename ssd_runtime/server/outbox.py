"""Events on their way to one client.

The engine never waits for a client: what one does not take at once waits here, up to a limit.
"""

from __future__ import annotations

import asyncio
from collections import deque

from ssd_runtime.server.errors import SlowClientError

CHUNK_BYTES = 65536
"""Most bytes that are handed over at once, but for an event that is larger by itself."""


class Outbox:
    """A queue of events, of `most_bytes` in all; several that wait are taken together."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._events: deque[bytes] = deque()
        self._size = 0
        self._news = asyncio.Event()
        self._ended = False
        self._error: Exception | None = None

    def put(self, event: bytes) -> None:
        """Queue an event; raises `SlowClientError` where too much waits."""
        self._events.append(event)
        self._size += len(event)
        if self._size > self._most:
            raise SlowClientError(f"{self._size} bytes of its answer wait (server.stream_buffer_bytes)")
        self._news.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more comes, for the reason `error` if there is one."""
        self._ended, self._error = True, error
        self._news.set()

    async def take(self) -> bytes:
        """What waits, in order; empty at the end. Raises the reason of the end when all is taken."""
        while not self._events and not self._ended:
            self._news.clear()
            await self._news.wait()
        if not self._events and self._error is not None:
            raise self._error
        taken: list[bytes] = []
        size = 0
        while self._events and (not taken or size + len(self._events[0]) <= CHUNK_BYTES):
            taken.append(self._events.popleft())
            size += len(taken[-1])
        self._size -= size
        return b"".join(taken)

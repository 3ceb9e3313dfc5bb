"""One HTTP exchange with an ASGI application, without sockets: the test is the client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp, Message

from ssd_runtime.server.app import create_app
from ssd_runtime.server.connections import BREAK_OFF
from ssd_runtime.server.service import ServedEngine, Service

JSON = {"content-type": "application/json"}


class Exchange:
    """A request to `app`, and what comes back. Must be made inside the loop that serves it.

    The client can go away at any time with `disconnect`, and the response can be looked at while it
    is being sent. `status` is 0 before the response has begun. reads: while it is not set, the client takes
    nothing after the response's beginning. `broken_off`: whether the daemon closed the connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        body: bytes | Mapping[str, Any] = b"",
        headers: Mapping[str, str] = JSON,
        reads: asyncio.Event | None = None,
    ) -> None:
        self.status = 0
        self.broken_off = False
        self._reads = reads
        self.headers: dict[str, str] = {}
        self.body = b""
        self._news = asyncio.Condition()
        self._gone = asyncio.Event()
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._messages: list[Message] = [{"type": "http.request", "body": sent, "more_body": False}]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
            "state": {BREAK_OFF: self._break_off},
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    @property
    def is_done(self) -> bool:
        """Whether the application is done with the request."""
        return self._task.done()

    def disconnect(self) -> None:
        """The client closes its connection."""
        self._gone.set()

    async def until(self, text: bytes) -> None:
        """Wait until `text` has come."""
        async with self._news:
            await self._news.wait_for(lambda: text in self.body)

    async def done(self) -> Exchange:
        """Wait for the application to be done with the request."""
        await self._task
        return self

    def json(self) -> Any:
        """The whole body as JSON."""
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """The events of a stream that has ended as it should, without `[DONE]`."""
        *events, last, rest = self.body.decode().split("\n\n")
        assert (last, rest) == ("data: [DONE]", "")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    def _break_off(self) -> None:
        self.broken_off = True
        self.disconnect()

    async def _send(self, message: Message) -> None:
        if self._reads is not None and message["type"] == "http.response.body":
            await self._reads.wait()
        async with self._news:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                self.body += message["body"]
            self._news.notify_all()


async def post(app: ASGIApp, path: str, body: bytes | Mapping[str, Any], **headers: str) -> Exchange:
    """The finished exchange of a POST in JSON."""
    return await Exchange(app, "POST", path, body, {**JSON, **headers}).done()


async def get(app: ASGIApp, path: str, **headers: str) -> Exchange:
    """The finished exchange of a GET."""
    return await Exchange(app, "GET", path, headers=headers).done()


@asynccontextmanager
async def served(
    engine: ServedEngine, service: Service | None = None, key: str | None = None
) -> AsyncIterator[tuple[ASGIApp, Service]]:
    """`engine` running behind the daemon's application, warmed up; its settings are the service's."""
    service = service or Service(engine.settings)
    async with engine:
        await service.use(engine)
        yield create_app(service, key), service

"""Answers as HTTP responses: at once, or as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

import structlog
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive, Scope, Send

from ssd_runtime.errors import SSDError
from ssd_runtime.faces import answer_of
from ssd_runtime.server.answers import Wording
from ssd_runtime.server.calls import Call
from ssd_runtime.server.connections import break_off
from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.server.errors import ClientGoneError, SlowClientError, error_body, status_of
from ssd_runtime.server.lifetime import Reason
from ssd_runtime.server.outbox import Outbox
from ssd_runtime.server.service import Service

log = structlog.get_logger(__name__)

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
REQUEST_ID = "x-request-id"
RETRY_SECONDS = "1"


class Reply:
    """The answer to `call`. Nothing is sent before the engine has taken the request."""

    def __init__(self, service: Service, endpoint: Endpoint, call: Call) -> None:
        self._service = service
        self._call = call
        self._limits = service.settings.server
        self._headers: Mapping[str, str] = {}
        most_drafts = service.settings.engine.speculative_length
        self._wording = Wording(endpoint, call.request, service.model, most_drafts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; what goes wrong before the first byte is an error status, later it is an event."""
        request_id = self._call.request.id
        self._headers = Headers(scope=scope)
        events = _Events(send, request_id, self._limits.send_timeout)
        try:
            async with self._service.serving(receive) as reason:
                if self._call.stream:
                    await self._stream(events, reason)
                else:
                    response = JSONResponse(await self._whole(), headers={REQUEST_ID: request_id})
                    await response(scope, receive, send)
        except ClientGoneError:
            log.debug("the client went away")
        except SlowClientError as error:
            log.warning("the client reads too slowly", reason=str(error))
            await break_off(scope)
        except SSDError as error:
            log.debug("a request failed", error=str(error))
            if events.started:
                await events.send(_event(error_body(error)))
                await events.end()
            else:
                await error_response(error, request_id)(scope, receive, send)

    async def _whole(self) -> dict[str, Any]:
        async with aclosing(self._service.pieces(self._call.request, self._headers)) as stream:
            return self._wording.whole(answer_of([piece async for piece in stream]))

    async def _stream(self, events: _Events, reason: Reason) -> None:
        outbox = Outbox(self._limits.stream_buffer_bytes)
        filling = asyncio.create_task(self._fill(outbox, reason))
        try:
            while waiting := await outbox.take():
                await events.send(waiting)
            await events.end()
        finally:
            filling.cancel()
            with suppress(asyncio.CancelledError):
                await filling

    async def _fill(self, outbox: Outbox, reason: Reason) -> None:
        """Put the answer into `outbox` as it comes, however fast its client reads."""
        try:
            await self._put_events(outbox)
        except SlowClientError as error:
            reason.end(error)
        except Exception as error:
            outbox.end(error)
        else:
            outbox.end()

    async def _put_events(self, outbox: Outbox) -> None:
        asked = self._call.stream_options
        async with aclosing(self._service.pieces(self._call.request, self._headers)) as stream:
            async for piece in stream:
                event = self._wording.chunk(piece)
                if "continuous_usage_stats" in asked:
                    event["usage"] = self._wording.usage_so_far()
                elif "include_usage" in asked:
                    event["usage"] = None
                outbox.put(_event(event))
        if "include_usage" in asked:
            outbox.put(_event(self._wording.usage_chunk()))
        outbox.put(DONE)


class _Events:
    """A stream of server-sent events, begun with the first of them."""

    def __init__(self, send: Send, request_id: str, seconds: float) -> None:
        self.started = False
        self._send = send
        self._headers = [*EVENT_HEADERS, (REQUEST_ID.encode(), request_id.encode())]
        self._seconds = seconds

    async def send(self, events: bytes) -> None:
        """Events as they stand on the wire; raises `SlowClientError` where nobody takes them."""
        if not self.started:
            self.started = True
            await self._message({"type": "http.response.start", "status": 200, "headers": self._headers})
        await self._message({"type": "http.response.body", "body": events, "more_body": True})

    async def end(self) -> None:
        """The stream is complete."""
        await self._message({"type": "http.response.body", "body": b"", "more_body": False})

    async def _message(self, message: Message) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._send(message)
        except TimeoutError:
            raise SlowClientError(f"it took nothing for {self._seconds:g} s (server.send_timeout)") from None


def _event(data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {text}\n\n".encode()


def error_response(error: SSDError, request_id: str | None = None) -> Response:
    """The whole response that an error is."""
    status = status_of(error)
    headers = {REQUEST_ID: request_id} if request_id is not None else {}
    if status in (429, 503):
        headers["Retry-After"] = RETRY_SECONDS
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=status, headers=headers)

"""Answers as HTTP responses: at once, or as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import structlog
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ssd_runtime.errors import SSDError
from ssd_runtime.faces import answer_of
from ssd_runtime.server.answers import chunk, statistics, usage_chunk, whole
from ssd_runtime.server.calls import Call
from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.server.errors import ClientGoneError, error_body, status_of
from ssd_runtime.server.service import Service
from ssd_runtime.types import Output

log = structlog.get_logger(__name__)

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
RETRY_SECONDS = "1"


class Reply:
    """The response to one call. Nothing is sent before the engine has taken the request."""

    def __init__(self, service: Service, endpoint: Endpoint, call: Call) -> None:
        self._service = service
        self._endpoint = endpoint
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer; what goes wrong before the first byte is an error status, later it is an event."""
        events = _Events(send)
        try:
            async with self._service.serving(receive):
                await (self._stream(events) if self._call.stream else self._whole(scope, receive, send))
        except ClientGoneError:
            log.debug("the client went away", request=self._call.request.id)
        except SSDError as error:
            if events.started:
                await events.send_json(error_body(error))
                await events.end()
            else:
                await error_response(error)(scope, receive, send)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._service.pieces(self._call.request)) as stream:
            answer = answer_of([piece async for piece in stream])
        body = whole(self._endpoint, answer, self._service.model, self._call.request.params)
        await JSONResponse(body)(scope, receive, send)

    async def _stream(self, events: _Events) -> None:
        model, with_usage = self._service.model, self._call.include_usage
        pieces: list[Output] = []
        texts: dict[int, str] = {}
        async with aclosing(self._service.pieces(self._call.request)) as stream:
            async for piece in stream:
                before = texts.get(piece.index)
                event = chunk(self._endpoint, piece, model, self._call.request.params, before=before)
                texts[piece.index] = (before or "") + piece.text
                pieces.append(piece)
                own = _statistics(pieces, piece.index) if piece.finish_reason else {}
                await events.send_json(event | own | ({"usage": None} if with_usage else {}))
        if with_usage:
            await events.send_json(usage_chunk(self._endpoint, answer_of(pieces), model))
        await events.send(b"data: [DONE]\n\n")
        await events.end()


def _statistics(pieces: Sequence[Output], index: int) -> dict[str, Any]:
    return statistics(answer_of([piece for piece in pieces if piece.index == index]))


class _Events:
    """A stream of server-sent events, begun with the first of them."""

    def __init__(self, send: Send) -> None:
        self.started = False
        self._send = send

    async def send_json(self, data: Mapping[str, Any]) -> None:
        """One event."""
        text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        await self.send(f"data: {text}\n\n".encode())

    async def send(self, event: bytes) -> None:
        """One event as it stands on the wire."""
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def end(self) -> None:
        """The stream is complete."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def error_response(error: SSDError) -> Response:
    """The whole response that an error is."""
    status = status_of(error)
    headers = {"Retry-After": RETRY_SECONDS} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=status, headers=headers)

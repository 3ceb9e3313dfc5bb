"""Bodies of requests: JSON of bounded size."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from ssd_runtime.errors import RequestError
from ssd_runtime.server.errors import ClientGoneError, RefusedError
from ssd_runtime.settings.json_object import json_object

Parsed = TypeVar("Parsed")
QUICK_BYTES = 16384
"""Bodies up to this size are parsed on the loop, larger ones on a worker thread."""
SECONDS = 60.0
"""How long a client may take to send a body."""
DISCARDED_BODIES = 16
"""How many times the largest body is read and thrown away, so that its sender hears the refusal."""


async def parsed_body(request: Request, largest: int, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """What `parse` makes of the JSON object that is the body; raises `RequestError`."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RefusedError(
            415,
            "unsupported_media_type",
            f"Content-Type: got {content_type[:60] or 'nothing'}, expected application/json",
            "Content-Type",
        )
    try:
        async with asyncio.timeout(SECONDS):
            body = await _read(request, largest)
    except TimeoutError:
        raise RefusedError(
            408, "request_timeout", f"the body took longer than {SECONDS:g} s", "body"
        ) from None
    if len(body) <= QUICK_BYTES:
        return _parse(body, parse)
    return await asyncio.to_thread(_parse, body, parse)


def _parse(body: bytes, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    try:
        return parse(json_object(body.decode()))
    except UnicodeDecodeError as error:
        raise RequestError(f"not valid UTF-8: {error.reason} at offset {error.start}") from None


async def _read(request: Request, largest: int) -> bytes:
    chunks, size = [], 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= largest:
                chunks.append(chunk)
            elif size > DISCARDED_BODIES * largest:
                break
    except ClientDisconnect:
        raise ClientGoneError from None
    if size > largest:
        raise RefusedError(
            413,
            "request_too_large",
            f"the body is too large: expected at most {largest} bytes (server.max_body_bytes)",
            "body",
        )
    return b"".join(chunks)

"""Errors as HTTP says them: a status, and a body of OpenAI's shape."""

from __future__ import annotations

from typing import Any

from ssd_runtime.errors import (
    ContextLengthError,
    EngineClosedError,
    EngineError,
    QueueFullError,
    RequestError,
    SSDError,
)


class RefusedError(RequestError):
    """A request that HTTP has a status of its own for. `code` is the machine-readable reason."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.status = status
        self.code = code


class DeadlineError(EngineError):
    """The request took longer than `server.request_timeout`."""

    type = "timeout"


class ClientGoneError(Exception):
    """The client closed its connection; nobody is there to be told anything."""


class SlowClientError(Exception):
    """The client does not take what is sent to it; its connection is broken off."""


_STATUS = (
    (RequestError, 400),
    (QueueFullError, 429),
    (EngineClosedError, 503),
    (DeadlineError, 504),
)


def status_of(error: SSDError) -> int:
    """The HTTP status that says what kind of error this is."""
    if isinstance(error, RefusedError):
        return error.status
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def error_body(error: SSDError) -> dict[str, Any]:
    """The error as OpenAI's clients read it."""
    param = error.param if isinstance(error, RequestError) else None
    kind = RequestError.type if isinstance(error, RequestError) else error.type
    return {"error": {"message": str(error), "type": kind, "param": param, "code": _code(error)}}


def _code(error: SSDError) -> str | None:
    if isinstance(error, RefusedError):
        return error.code
    plain = isinstance(error, RequestError) and not isinstance(error, ContextLengthError)
    return None if plain else error.type

"""The routes. Every error is of OpenAI's shape, and every page but `/metrics` is JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ssd_runtime.errors import SSDError
from ssd_runtime.server.answers import models
from ssd_runtime.server.auth import KeyCheck
from ssd_runtime.server.bodies import parsed_body
from ssd_runtime.server.calls import Call, parse
from ssd_runtime.server.endpoints import Chat, Completions, Endpoint
from ssd_runtime.server.errors import ClientGoneError, RefusedError
from ssd_runtime.server.replies import Reply, error_response
from ssd_runtime.server.service import Service
from ssd_runtime.telemetry.metrics import CONTENT_TYPE

log = structlog.get_logger(__name__)


def create_app(service: Service, key: str | None = None) -> Starlette:
    """The ASGI application that serves `service`; with a key, only to those who have it."""
    return Starlette(
        routes=[
            Route("/v1/completions", _answers(service, Completions()), methods=["POST"]),
            Route("/v1/chat/completions", _answers(service, Chat()), methods=["POST"]),
            Route("/v1/models", partial(_models, service)),
            Route("/health", partial(_health, service)),
            Route("/ready", partial(_ready, service)),
            Route("/metrics", partial(_metrics, service)),
        ],
        middleware=[Middleware(KeyCheck, key)] if key is not None else [],
        exception_handlers={HTTPException: _http_error, SSDError: _error, Exception: _unexpected},
    )


def _answers(service: Service, endpoint: Endpoint) -> Callable[[Request], Awaitable[Any]]:
    async def answer(request: Request) -> Any:
        service.check_admits()
        read = partial(_call, service, endpoint)
        try:
            call = await parsed_body(request, service.settings.server.max_body_bytes, read)
        except ClientGoneError:
            return Response()
        return Reply(service, endpoint, call)

    return answer


def _call(service: Service, endpoint: Endpoint, body: dict[str, Any]) -> Call:
    return parse(endpoint, body, service.model, service.default_params())


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse(models(service.model, service.max_context))


async def _health(service: Service, request: Request) -> Response:
    alive = service.is_alive
    return JSONResponse({"status": "ok" if alive else "failed"}, status_code=200 if alive else 503)


async def _ready(service: Service, request: Request) -> Response:
    status = service.status()
    return JSONResponse(status, status_code=200 if status["status"] == "ready" else 503)


async def _metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail.lower()}"
    code = "not_found" if error.status_code == 404 else "method_not_allowed"
    response = error_response(RefusedError(error.status_code, code, message))
    response.headers.update(error.headers or {})
    return response


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, SSDError)
    return error_response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    log.error("a request failed on an internal error", path=request.url.path, error=repr(error))
    return error_response(SSDError("internal error; see the server's log"))

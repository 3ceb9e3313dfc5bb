"""The routes. Every error is of OpenAI's shape, and every page but `/metrics` is JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ssd_runtime import __version__
from ssd_runtime.errors import SSDError
from ssd_runtime.server.admin import RELOAD_PATH, reload
from ssd_runtime.server.answers import described_model, models
from ssd_runtime.server.auth import KeyCheck
from ssd_runtime.server.bodies import parsed_body
from ssd_runtime.server.calls import Call, check_model, parse
from ssd_runtime.server.endpoints import Chat, Completions, Endpoint
from ssd_runtime.server.errors import ClientGoneError, RefusedError
from ssd_runtime.server.openapi import document
from ssd_runtime.server.replies import Reply, error_response
from ssd_runtime.server.service import DEGRADED, Phase, Service
from ssd_runtime.server.tokens import Work, detokenizing, done, tokenizing
from ssd_runtime.telemetry.metrics import CONTENT_TYPE

log = structlog.get_logger(__name__)


def create_app(service: Service, key: str | None = None) -> Starlette:
    """The ASGI application that serves `service`; with a key, only to those who have it."""
    return Starlette(
        routes=[
            Route("/v1/completions", _Generating(service, Completions()), methods=["POST"]),
            Route("/v1/chat/completions", _Generating(service, Chat()), methods=["POST"]),
            Route("/v1/models", partial(_models, service)),
            Route("/v1/models/{model:path}", partial(_model, service)),
            Route("/tokenize", _working(service, tokenizing), methods=["POST"]),
            Route("/detokenize", _working(service, detokenizing), methods=["POST"]),
            Route("/health", partial(_health, service)),
            Route("/ready", partial(_ready, service)),
            Route("/metrics", partial(_metrics, service)),
            Route("/version", _version),
            Route(RELOAD_PATH, partial(reload, service), methods=["POST"]),
            Route("/openapi.json", partial(_openapi, service)),
        ],
        middleware=[Middleware(KeyCheck, key)],
        exception_handlers={HTTPException: _http_error, SSDError: _error, Exception: _unexpected},
    )


class _Generating:
    """The application of one endpoint that answers prompts."""

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read a request, answer it."""
        service = self._service
        with service.admitted():
            try:
                call = await parsed_body(
                    Request(scope, receive), service.settings.server.max_body_bytes, self._call
                )
            except ClientGoneError:
                return
            with structlog.contextvars.bound_contextvars(request_id=call.request.id):
                await Reply(service, self._endpoint, call)(scope, receive, send)

    def _call(self, body: dict[str, Any]) -> Call:
        return parse(self._endpoint, body, self._service.model, self._service.default_params())


def _working(
    service: Service, prepare: Callable[[Service, Mapping[str, Any]], Work]
) -> Callable[[Request], Awaitable[Response]]:
    """The handler whose answer is what `prepare` gives to do."""

    async def answer(request: Request) -> Response:
        with service.admitted():
            try:
                work = await parsed_body(
                    request, service.settings.server.max_body_bytes, partial(prepare, service)
                )
            except ClientGoneError:
                return Response()
            return JSONResponse(await done(work))

    return answer


async def _models(service: Service, request: Request) -> Response:
    return JSONResponse(models(service.model, service.max_context))


async def _model(service: Service, request: Request) -> Response:
    check_model(request.path_params["model"], service.model)
    return JSONResponse(described_model(service.model, service.max_context))


async def _health(service: Service, request: Request) -> Response:
    alive = service.is_alive
    return JSONResponse({"status": "ok" if alive else "failed"}, status_code=200 if alive else 503)


async def _ready(service: Service, request: Request) -> Response:
    status = service.status()
    return JSONResponse(status, status_code=200 if status["status"] in (Phase.READY, DEGRADED) else 503)


async def _metrics(service: Service, request: Request) -> Response:
    return Response(service.metrics.text(), headers={"Content-Type": CONTENT_TYPE})


async def _version(request: Request) -> Response:
    return JSONResponse({"version": __version__})


async def _openapi(service: Service, request: Request) -> Response:
    return JSONResponse(document(service.model))


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

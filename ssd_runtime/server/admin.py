"""What changes the daemon: the configuration is read again, on a request with the key or on SIGHUP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import structlog
from pydantic import Field
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from ssd_runtime.errors import ConfigError, ModelError, PluginError, RequestError, SSDError
from ssd_runtime.server.errors import RefusedError
from ssd_runtime.server.schemas import Shape
from ssd_runtime.server.service import Service
from ssd_runtime.settings.difference import Change, Difference

log = structlog.get_logger(__name__)

RELOAD_PATH = "/admin/reload"


class ChangedSetting(Shape):
    """A setting by its dotted key; both values as in YAML, on one line."""

    setting: str
    old: str
    new: str


class Reloaded(Shape):
    """The answer of `/admin/reload`."""

    changed: list[ChangedSetting] = Field(description="What the daemon follows from now on.")
    needs_restart: list[ChangedSetting] = Field(description="What is as it was until the next start.")


async def reload(service: Service, request: Request) -> Response:
    """Read the configuration again; what is different now, and what needs a restart."""
    try:
        await _check_empty(request)
    except ClientDisconnect:
        return Response()
    try:
        found = await _reloaded(service, RELOAD_PATH)
    except (ConfigError, ModelError, PluginError) as error:
        raise RefusedError(400, "invalid_configuration", str(error)) from None
    return JSONResponse(_described(found))


@contextmanager
def reloading_on_hangup(service: Service) -> Iterator[None]:
    """While the daemon lives: SIGHUP means `reload`, and never its end; the log says what came of it."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def take() -> None:
        task = loop.create_task(_reload_and_log(service))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, take)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        for task in tasks:
            task.cancel()


async def _reload_and_log(service: Service) -> None:
    try:
        await _reloaded(service, "SIGHUP")
    except Exception as error:  # whatever is wrong, the daemon goes on
        reason = str(error) if isinstance(error, SSDError) else repr(error)
        log.error("the configuration was not reloaded; everything is as before", error=reason)


async def _reloaded(service: Service, by: str) -> Difference:
    found = await service.reload()
    log.info("reloaded", by=by, **{kind: _pairs(changes) for kind, changes in _kinds(found)})
    return found


def _kinds(found: Difference) -> list[tuple[str, tuple[Change, ...]]]:
    return [("changed", found.changed), ("needs_restart", found.needs_restart)]


def _pairs(changes: tuple[Change, ...]) -> dict[str, str]:
    return {change.setting: f"{change.old} -> {change.new}" for change in changes}


def _described(found: Difference) -> dict[str, Any]:
    return {kind: [asdict(change) for change in changes] for kind, changes in _kinds(found)}


async def _check_empty(request: Request) -> None:
    async for chunk in request.stream():
        if chunk:
            raise RequestError(
                "the body is not empty, expected none: the daemon reads its own file again", "body"
            )

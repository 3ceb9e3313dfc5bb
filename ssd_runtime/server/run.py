"""The daemon's life: listen, load, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import structlog
import uvicorn

from ssd_runtime.errors import ConfigError
from ssd_runtime.server.app import create_app
from ssd_runtime.server.auth import configured_key
from ssd_runtime.server.service import Phase, ServedEngine, Service
from ssd_runtime.settings.schema import ServerSettings

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 5
INTERRUPTED = 130
SIGNALS = (signal.SIGTERM, signal.SIGINT)
MakeEngine = Callable[[Service], ServedEngine]


def listen(settings: ServerSettings) -> socket.socket:
    """The socket that the daemon is asked on; raises `ConfigError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"server: cannot listen on {settings.host}, port {settings.port}: {reason}; "
            "choose others with --set server.host=… and --set server.port=…"
        ) from None


async def serve(service: Service, make: MakeEngine, listener: socket.socket) -> int:
    """Serve what `make` gives on `listener` until a signal; the exit status.

    Raises what entering the engine raises: `ConfigError`, `ModelError`, `PluginError`.
    """
    settings = service.settings.server
    key = configured_key(settings)
    server = _Server(
        uvicorn.Config(
            create_app(service, key),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=CLOSE_SECONDS,
        )
    )
    _tell_address(listener, has_key=key is not None)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        with _signals(service) as asked:
            return await _live(service, make, asked)
    finally:
        server.should_exit = True
        await serving


async def _live(service: Service, make: MakeEngine, asked: asyncio.Future[int]) -> int:
    async with make(service) as engine:
        await service.use(engine)
        log.info("ready", model=service.model, max_model_len=service.max_context)
        number = await asked
        seconds = service.settings.server.drain_seconds
        log.info("stopping", signal=signal.Signals(number).name, active=service.active, drain_seconds=seconds)
        cancelled = await service.drain(seconds)
        log.info("stopped", cancelled=cancelled)
    return INTERRUPTED if number == signal.SIGINT else 0


@contextmanager
def _signals(service: Service) -> Iterator[asyncio.Future[int]]:
    """A future that a signal gives its number. While loading, and the second time, it ends the process."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[int] = loop.create_future()

    def take(number: int) -> None:
        if asked.done() or service.phase is Phase.LOADING:
            log.warning("ended at once", signal=signal.Signals(number).name, active=service.active)
            os._exit(128 + number)  # loading happens on a thread that nothing else can stop
        asked.set_result(number)

    for number in SIGNALS:
        loop.add_signal_handler(number, take, number)
    try:
        yield asked
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _tell_address(listener: socket.socket, *, has_key: bool) -> None:
    host, port = listener.getsockname()[:2]
    log.info("listening", url=f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    if not has_key and not ipaddress.ip_address(host).is_loopback:
        log.warning("anybody who reaches this address may ask; set server.api_key_file", host=host)


class _Server(uvicorn.Server):
    """uvicorn, which leaves the signals to us."""

    def capture_signals(self) -> Any:
        """Capture none."""
        return nullcontext()

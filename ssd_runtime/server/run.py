"""The daemon's life: listen, load, warm up, serve, drain, end."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from ssd_runtime.server.admin import reloading_on_hangup
from ssd_runtime.server.auth import configured_key
from ssd_runtime.server.door import SIGNALS, Door, Server, listen
from ssd_runtime.server.observing import observing
from ssd_runtime.server.service import Phase, ServedEngine, Service
from ssd_runtime.telemetry.spans import open_spans

log = structlog.get_logger(__name__)

INTERRUPTED = 130
MakeEngine = Callable[[Service], ServedEngine]


def open_door(service: Service) -> Door:
    """The daemon's socket, on which somebody answers from now on; raises `ConfigError`.

    From now on SIGHUP, which means a reload later, ends neither the daemon nor who answers for it.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = service.settings.server
    key = configured_key(settings)
    listener = listen(settings)
    door = Door(listener, service, key)
    _tell_address(listener, has_key=key is not None)
    return door


async def serve(service: Service, make: MakeEngine, door: Door) -> int:
    """Serve what `make` gives at `door` until a signal; the exit status.

    Raises what entering the engine raises: `ConfigError`, `ModelError`, `PluginError`.
    """
    service.spans = open_spans(service.settings.server.otlp_endpoint, service.model)
    server = Server(service, configured_key(service.settings.server))
    serving: asyncio.Task[None] | None = None
    service.tell = door.tell
    with reloading_on_hangup(service), _signals(service) as asked:
        try:
            async with make(service) as engine:
                await service.use(engine)
                _settle()
                await asyncio.to_thread(door.take_over)
                serving = asyncio.create_task(server.serve(sockets=[door.listener]))
                log.info("ready", model=service.model, max_model_len=service.max_context)
                async with observing(service):
                    return await _until_stopped(service, asked)
        finally:
            server.should_exit = True
            if serving is not None:
                await serving


async def _until_stopped(service: Service, asked: asyncio.Future[int]) -> int:
    number = await asked
    seconds = service.settings.server.drain_seconds
    log.info("stopping", signal=signal.Signals(number).name, active=service.active, drain_seconds=seconds)
    cancelled = await service.drain(seconds)
    log.info("stopped", cancelled=cancelled)
    return INTERRUPTED if number == signal.SIGINT else 0


def _settle() -> None:
    """Set what loading made apart: to collect it again would hold every thread for a tenth of a second."""
    gc.collect()
    gc.freeze()


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

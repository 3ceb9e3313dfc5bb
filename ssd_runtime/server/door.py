"""The daemon's socket, and a process that answers on it while the daemon loads.

Loading takes the interpreter for up to a quarter of a second at a time: importing, reading a
vocabulary, collecting garbage. Whoever asks `/health` meanwhile is answered from another process,
which does nothing else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn, Self

import structlog
import uvicorn

from ssd_runtime.errors import ConfigError
from ssd_runtime.server.app import create_app
from ssd_runtime.server.connections import Connection
from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import ServerSettings

log = structlog.get_logger(__name__)

CLOSE_SECONDS = 5
HAND_OVER_SECONDS = 5.0
LAST_REQUESTS_SECONDS = 1.0
"""How long the other process stays for requests that came to it before the daemon took over."""
ONE_REQUEST = (("connection", "close"),)
"""Each connection gets one answer, so that none is broken off when the daemon takes over."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Door:
    """A listening socket. From its making to `take_over`, a child process answers on it for `service`.

    Make it before anything that starts threads. `service` is copied: the child hears of the loading
    through `tell`. When this process dies, however it does, the child ends too.
    """

    def __init__(self, listener: socket.socket, service: Service, key: str | None) -> None:
        self.listener = listener
        self._line, theirs = socket.socketpair()
        self._child = os.fork()
        if not self._child:
            self._line.close()
            _answer_and_exit(listener, service, key, theirs)
        theirs.close()
        self._line.settimeout(HAND_OVER_SECONDS)

    def tell(self, progress: str) -> None:
        """Let `/ready` say `progress`; callable from any thread."""
        with suppress(OSError):  # without the child nobody asks
            self._line.sendall(f"{progress}\n".encode())

    def take_over(self) -> None:
        """Make the child accept no more connections; those that come from now on wait for this process."""
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
            self._line.recv(1)
        self._line.close()
        threading.Thread(target=os.waitpid, args=(self._child, 0), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nobody answers any more, and nobody listens."""
        if self._line.fileno() >= 0:
            self.take_over()
        self.listener.close()


def listen(settings: ServerSettings) -> socket.socket:
    """The socket that the daemon is asked on; raises `ConfigError` where it cannot be had."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]  # Python adds the address
        raise ConfigError(
            f"server: cannot listen on {settings.host}, port {settings.port}: {reason}; "
            "choose others with --set server.host=… and --set server.port=…"
        ) from None
    # connections inherit it; an answer in two parts would wait 40 ms for the client's acknowledgement
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class Server(uvicorn.Server):
    """uvicorn serving `service`, with the signals left to us."""

    def __init__(self, service: Service, key: str | None, headers: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(
            uvicorn.Config(
                create_app(service, key),
                headers=list(headers),
                lifespan="off",
                http=Connection,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )

    def capture_signals(self) -> Any:
        """Capture none."""
        return nullcontext()


def _answer_and_exit(
    listener: socket.socket, service: Service, key: str | None, line: socket.socket
) -> NoReturn:
    try:
        for number in (
            *SIGNALS,
            signal.SIGHUP,
        ):  # a terminal and a supervisor send them to both; the end of the line is ours
            signal.signal(number, signal.SIG_IGN)
        asyncio.run(_answer(listener, service, key, line))
    except Exception:
        log.exception("nobody answers while the daemon loads")
    finally:
        os._exit(0)


async def _answer(listener: socket.socket, service: Service, key: str | None, line: socket.socket) -> None:
    server = Server(service, key, headers=ONE_REQUEST)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    reader, writer = await asyncio.open_connection(sock=line)
    async for progress in reader:
        service.progress = progress.decode().rstrip()
    asyncio.get_running_loop().remove_reader(listener)
    await asyncio.sleep(0)  # what was accepted just now is lost if the server is closed before it begins
    for each in server.servers:
        each.close()
    writer.close()
    await asyncio.wait([serving], timeout=LAST_REQUESTS_SECONDS)

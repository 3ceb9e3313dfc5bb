"""The daemon as a process of its own, for tests from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from typing import IO, Any

LONG_SECONDS = 450
"""How long an answer may take: a prompt of 8000 tokens, on a machine that does something else too."""
COMMAND = ("-c", "from ssd_runtime.cli.main import main; main()")
"""What Python is given to be `ssd-run`."""
QUIET = ("--set", "server.port=0", "--set", "log.format=json")
"""Options without which a daemon that is `COMMAND` is not understood here."""

TOY = """
import asyncio, sys
from ssd_runtime.cli.options import configure_logging
from ssd_runtime.server.run import open_door, serve
from ssd_runtime.server.service import Service
from ssd_runtime.settings.load import load_settings

settings = load_settings(None, ["server.port=0", "log.format=json", *sys.argv[1:]], environ={}).settings
configure_logging(settings.log)
service = Service(settings)
door = open_door(service)
from ssd_runtime.testing.engines import toy_engine

toy = ("scheduler.policy=ssd", "engine.draft_model=toy/1")
make = lambda service: toy_engine(*toy, plugins=[service.metrics], trace=service.metrics.lanes)
sys.exit(asyncio.run(serve(service, make, door)))
"""
"""Python that is a daemon with a toy model; its arguments are settings."""
WATCHED = """
import asyncio, sys
from ssd_runtime.cli.options import configure_logging
from ssd_runtime.server.run import open_door, serve
from ssd_runtime.server.service import Phase, Service
from ssd_runtime.settings.load import load_settings

loaded = load_settings(None, ["server.port=0", "log.format=json", *sys.argv[1:]], environ={})
configure_logging(loaded.settings.log)
service = Service(loaded.settings)
door = open_door(service)
from ssd_runtime.app import Engine
from ssd_runtime.engine.thread import new_event_loop
from ssd_runtime.testing.loop_watch import watched

make = lambda service: Engine(
    loaded, progress=service.report, plugins=[service.metrics], trace=service.metrics.lanes
)
with asyncio.Runner(loop_factory=new_event_loop) as runner:
    serving = serve(service, make, door)
    sys.exit(runner.run(watched(serving, lambda: service.phase is Phase.READY)))
"""
"""Python that is the daemon, and logs how long its loop was blocked at most while it was ready."""


class Daemon:
    """A daemon on a free port, and what it logs."""

    def __init__(self, *command: str) -> None:
        self.process = subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self._log: IO[str] = self.process.stderr
        self._connections: list[HTTPConnection] = []
        self.port = int(self.logged("listening")["url"].rpartition(":")[2])

    def logged(self, event: str) -> dict[str, Any]:
        """The next line of the log that says `event`."""
        for line in self._log:
            entry: dict[str, Any] = json.loads(line)
            if entry["event"] == event:
                return entry
        raise AssertionError(f"the daemon ended without {event!r}")

    def rest_of_log(self) -> str:
        """What is logged until the last process ends that can log."""
        return self._log.read()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def post(self, body: dict[str, Any]) -> HTTPConnection:
        """A connection on which a completion has been asked for; open until `hang_up`."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=LONG_SECONDS)
        self._connections.append(connection)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        return connection

    def hang_up(self) -> None:
        """Close every connection."""
        while self._connections:
            self._connections.pop().close()

    def end(self) -> None:
        """Leave nothing behind."""
        self.hang_up()
        self.process.kill()
        self.process.wait()
        self._log.close()


@contextmanager
def toy(*overrides: str) -> Iterator[Daemon]:
    """A daemon with a toy model, ready; killed at the end if it still runs."""
    with running("-c", TOY, *overrides) as daemon:
        daemon.logged("ready")
        yield daemon


@contextmanager
def running(*command: str) -> Iterator[Daemon]:
    """A daemon that listens; killed at the end if it still runs."""
    daemon = Daemon(*command)
    try:
        yield daemon
    finally:
        daemon.end()

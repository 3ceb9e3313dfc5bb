"""While the daemon loads, another process answers in its place."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import closing
from http.client import HTTPConnection

import pytest

from ssd_runtime.server.door import listen
from ssd_runtime.settings.schema import ServerSettings
from ssd_runtime.testing.daemon import TOY, Daemon, running


def test_health_does_not_need_the_process_that_loads() -> None:
    """It may be stopped altogether; everything else is refused, and each connection is closed."""
    with running("-c", TOY) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        assert daemon.get("/health") == (200, '{"status":"ok"}')
        status, body = daemon.get("/ready")
        assert (status, json.loads(body)["status"]) == (503, "loading")
        with closing(HTTPConnection("127.0.0.1", daemon.port, timeout=60)) as connection:
            connection.request("GET", "/v1/models")
            response = connection.getresponse()
            assert (response.status, response.headers["connection"]) == (200, "close")
        assert daemon.post({"prompt": "a"}).getresponse().status == 503
        daemon.process.send_signal(signal.SIGCONT)
        daemon.logged("ready")
        assert daemon.get("/ready")[0] == 200


def test_no_request_is_lost_when_the_daemon_takes_over() -> None:
    """Asked again and again, by connection after connection, until it is ready: always an answer."""
    with running("-c", TOY) as daemon:
        answers = [daemon.get("/ready")[0]]
        while answers[-1] != 200:
            answers.append(daemon.get("/ready")[0])
    assert set(answers) == {200, 503}


def test_it_ends_with_the_process_that_loads() -> None:
    """Also when that is killed: the port is free for the next."""
    with running("-c", TOY) as daemon:
        daemon.process.send_signal(signal.SIGSTOP)
        assert daemon.get("/health")[0] == 200
        daemon.process.kill()
        daemon.process.wait()
        while answers(daemon):
            pass
        with running("-c", TOY, f"server.port={daemon.port}") as again:
            assert again.get("/health")[0] == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_both_processes_leaves_none(number: signal.Signals) -> None:
    """A terminal and a supervisor send it to the whole group. The log ends when the last process does."""
    with running("-c", TOY) as daemon:
        daemon.process.send_signal(number)
        assert daemon.process.wait(20) != 0
        assert "ready" not in daemon.rest_of_log()


def test_small_writes_are_sent_at_once() -> None:
    """Whatever loop serves: else an answer on a used connection would wait for an acknowledgement."""
    with listen(ServerSettings(port=0)) as listener:
        address = listener.getsockname()
        with socket.create_connection(address), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def answers(daemon: Daemon) -> bool:
    try:
        return daemon.get("/health")[0] == 200
    except ConnectionError:
        return False

"""Clients that ask, send or read slowly hold up nobody, and cannot hold memory or connections for long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress

import pytest

from ssd_runtime.server import bodies, connections
from ssd_runtime.server.door import Server, listen
from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import EngineSettings, SchedulerSettings, ServerSettings, Settings
from ssd_runtime.testing.asgi import Exchange, post, served
from ssd_runtime.testing.fake_engine import FakeEngine, Step
from ssd_runtime.types import Request

COMPLETIONS = "/v1/completions"
STREAM = {"prompt": "a", "stream": True}


def pieces(count: int, size: int) -> Callable[[Request], Iterable[Step]]:
    """A script: `count` pieces of `size` characters to every prompt but `short`."""

    def script(request: Request) -> Iterable[Step]:
        return ["x" * size] * count if request.prompt == "a" else ["short"]

    return script


def settings(**server: float) -> Settings:
    return Settings(server=ServerSettings(port=0, **server))


class TestReaders:
    async def test_the_engine_does_not_wait_for_who_reads_nothing(self) -> None:
        """The row ends at its own speed; when the client reads at last, everything is there."""
        engine, reads = FakeEngine(pieces(200, 100)), asyncio.Event()
        async with served(engine) as (app, _):
            slow = Exchange(app, "POST", COMPLETIONS, STREAM, reads=reads)
            while len(engine.finished) < 3:  # two of them are the warm-up  # noqa: ASYNC110
                await asyncio.sleep(0)
            assert (slow.body, slow.is_done) == (b"", False)
            assert (await post(app, COMPLETIONS, {"prompt": "short"})).status == 200
            reads.set()
            events = (await slow.done()).events()
        assert "".join(event["choices"][0]["text"] for event in events) == "x" * 20_000

    async def test_who_falls_too_far_behind_is_disconnected(self) -> None:
        """More than the buffer waits: the request is cancelled, which frees its memory in the engine."""
        engine = FakeEngine(pieces(2000, 100))
        service = Service(settings(stream_buffer_bytes=65536))
        async with served(engine, service) as (app, _):
            slow = await Exchange(app, "POST", COMPLETIONS, STREAM, reads=asyncio.Event()).done()
        assert slow.broken_off
        assert (len(engine.cancelled), engine.running, service.active) == (1, 0, 0)

    async def test_who_takes_nothing_for_too_long_is_disconnected(self) -> None:
        """Though little waits, and the engine has long finished."""
        engine, service = FakeEngine(pieces(2, 10)), Service(settings(send_timeout=0.05))
        async with served(engine, service) as (app, _):
            slow = await Exchange(app, "POST", COMPLETIONS, STREAM, reads=asyncio.Event()).done()
        assert (slow.broken_off, service.active) == (True, 0)


@asynccontextmanager
async def listening(engine: FakeEngine, chosen: Settings) -> AsyncIterator[tuple[Server, int]]:
    """A server on a port of its own."""
    service = Service(chosen)
    async with engine:
        await service.use(engine)
        with listen(chosen.server) as listener:
            server = Server(service, None)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            yield server, listener.getsockname()[1]
            server.should_exit = True
            await serving


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client, which takes little from the system before it reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def until_closed(server: Server) -> None:
    """Until no connection is left; the test's time limit is the only other end."""
    while server.server_state.connections:  # noqa: ASYNC110  # uvicorn tells nobody
        await asyncio.sleep(0.01)


def request(body: bytes, length: int | None = None) -> bytes:
    length = len(body) if length is None else length
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode() + body


class TestConnections:
    @pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nX-Slow: "])
    async def test_who_does_not_finish_a_requests_head_is_disconnected(
        self, monkeypatch: pytest.MonkeyPatch, sent: bytes
    ) -> None:
        """Whether nothing comes or a little."""
        monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
        async with listening(FakeEngine(), settings()) as (server, port), connected(port) as (reader, writer):
            writer.write(sent)
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
            await until_closed(server)

    async def test_the_head_of_a_second_request_has_a_limit_too(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a connection that was good for one."""
        async with listening(FakeEngine(), settings()) as (server, port), connected(port) as (reader, writer):
            writer.write(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert (await reader.readexactly(12)) == b"HTTP/1.1 200"
            monkeypatch.setattr(connections, "HEAD_SECONDS", 0.05)
            writer.write(b"GET /heal")
            await until_closed(server)

    async def test_a_body_that_does_not_come_is_408(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The client hears so."""
        monkeypatch.setattr(bodies, "SECONDS", 0.05)
        async with listening(FakeEngine(), settings()) as (_, port), connected(port) as (reader, writer):
            writer.write(request(b"{", length=100))
            assert (await reader.readexactly(12)) == b"HTTP/1.1 408"

    async def test_an_answer_that_nobody_reads_is_thrown_away(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It was complete, so no request runs any more; but its memory is held by the connection."""
        monkeypatch.setattr(connections, "STUCK_SECONDS", 0.05)
        engine = FakeEngine(pieces(1, 30_000_000))
        async with listening(engine, settings()) as (server, port), connected(port) as (_, writer):
            writer.write(request(json.dumps({"prompt": "a"}).encode()))
            while "a" not in [asked.prompt for asked in engine.requests]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await until_closed(server)

    async def test_a_stream_that_nobody_reads_is_broken_off(self) -> None:
        """The system's buffers are full, then the daemon's; others are served meanwhile."""
        engine = FakeEngine(pieces(3000, 10_000))
        chosen = settings(stream_buffer_bytes=65536)
        async with listening(engine, chosen) as (server, port), connected(port) as (_, writer):
            writer.write(request(json.dumps(STREAM).encode()))
            async with connected(port) as (reader, other):
                other.write(request(b'{"prompt": "short"}'))
                assert (await reader.readexactly(12)) == b"HTTP/1.1 200"
            await until_closed(server)
            assert len(engine.cancelled) == 1


async def test_too_many_requests_at_once_are_429() -> None:
    """Counted from their first byte on, so that reading and tokenising them is bounded too."""
    go = asyncio.Event()
    chosen = Settings(engine=EngineSettings(max_batch_size=1), scheduler=SchedulerSettings(max_queue=1))
    engine = FakeEngine(lambda request: [] if request.id == "warm-up" else ["a", go])
    async with served(engine, Service(chosen)) as (app, _):
        two = [Exchange(app, "POST", COMPLETIONS, STREAM) for _ in range(2)]
        for exchange in two:
            await exchange.until(b"data")
        for path in (COMPLETIONS, "/tokenize"):
            refused = await post(app, path, {"prompt": "a"})
            assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
            assert refused.headers["retry-after"] == "1"
        go.set()
        for exchange in two:
            await exchange.done()
        assert (await post(app, COMPLETIONS, {"prompt": "a"})).status == 200

"""What the daemon does beside serving: its loop's lag, lines in the log, the ids in them."""

from __future__ import annotations

import asyncio

import structlog
from structlog.testing import capture_logs

from ssd_runtime.clock import ManualClock
from ssd_runtime.server.observing import observing
from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import Settings
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.spans import Spans
from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.fake_engine import FakeEngine


class Time:
    """A clock that moves on when somebody sleeps, and a little late; it stops at its end."""

    def __init__(self, end: float, late: float = 0.0) -> None:
        self.clock = ManualClock()
        self.over = asyncio.Event()
        self._end = end
        self._late = late
        self._due: list[float] = []

    async def sleep(self, seconds: float) -> None:
        """Until the clock says so."""
        due = self.clock.now + seconds
        self._due.append(due)
        await asyncio.sleep(0)  # whoever sleeps too has said until when
        while due > min(self._due):  # noqa: ASYNC110  # nobody else moves the clock
            await asyncio.sleep(0)
        self._due.remove(due)
        if due > self._end:
            self.over.set()
            await asyncio.Event().wait()
        self.clock.now = due + self._late


async def logged(service: Service, time: Time) -> list[str]:
    with capture_logs() as entries:
        async with observing(service, time.clock, time.sleep):
            await time.over.wait()
    return [entry["event"] for entry in entries]


async def test_while_there_is_traffic_the_log_says_so_every_ten_seconds() -> None:
    """In the words of vLLM's line; afterwards it is silent."""
    service = Service(Settings())
    service.metrics.observe(RoundRecord("a", "cache", True, 4, 3, 4))
    service.metrics.piece(4, None)
    lines = await logged(service, Time(35.0))
    assert [line.partition(":")[0] for line in lines] == ["Avg prompt throughput", "SpecDecoding metrics"]
    assert lines[1].startswith(
        "SpecDecoding metrics: Mean acceptance length: 4.00, Accepted throughput: 0.30"
    )


async def test_without_traffic_the_log_is_silent() -> None:
    """However long it lasts."""
    assert await logged(Service(Settings()), Time(100.0)) == []


async def test_the_lag_is_how_late_the_loop_wakes_up() -> None:
    """Each tick counts."""
    service = Service(Settings())
    await logged(service, Time(4.0, late=0.03))
    counts = dict(service.metrics.loop_lag.cumulative())
    assert (counts["0.025"], counts["0.05"]) == (0, counts["+Inf"])
    assert counts["+Inf"] > 3


async def test_spans_are_sent_before_the_end() -> None:
    """Those that wait for more are not lost with the process."""

    class Closing(Spans):
        closed = False

        def __init__(self) -> None:
            """Nothing is made."""

        def close(self) -> None:
            """Remember."""
            self.closed = True

    service = Service(Settings())
    service.spans = spans = Closing()
    await logged(service, Time(1.0))
    assert spans.closed


async def test_a_line_about_a_request_has_its_id() -> None:
    """The one that its client got, whoever writes the line."""
    structlog.contextvars.clear_contextvars()
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as entries:
        async with served(FakeEngine()) as (app, _):
            for stream in (False, True):
                exchange = await post(app, "/v1/completions", {"prompt": "a", "stream": stream})
                [entry] = [each for each in entries if each["event"] == "a request ended"]
                assert entry["request_id"] == exchange.headers["x-request-id"]
                assert entry["finish_reason"] == "stop"
                entries.clear()
    assert structlog.contextvars.get_contextvars() == {}

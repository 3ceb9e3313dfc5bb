"""What the daemon does beside serving, so that others see how it is: its loop's lag, lines in the log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.server.service import Service
from ssd_runtime.telemetry.traffic import INTERVAL_SECONDS, TrafficLines

log = structlog.get_logger(__name__)

TICK_SECONDS = 0.5
Sleep = Callable[[float], Awaitable[None]]


@asynccontextmanager
async def observing(
    service: Service, clock: Clock = monotonic, sleep: Sleep = asyncio.sleep
) -> AsyncIterator[None]:
    """While the daemon serves. Traces that were not sent yet are sent at the end."""
    tasks = [
        asyncio.create_task(_watch_loop(service, clock, sleep)),
        asyncio.create_task(_tell_traffic(service, clock, sleep)),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if service.spans is not None:
            await asyncio.to_thread(service.spans.close)


async def _watch_loop(service: Service, clock: Clock, sleep: Sleep) -> None:
    while True:
        due = clock() + TICK_SECONDS
        await sleep(TICK_SECONDS)
        service.metrics.loop_lag.observe(max(0.0, clock() - due))


async def _tell_traffic(service: Service, clock: Clock, sleep: Sleep) -> None:
    lines = TrafficLines(clock())
    while True:
        await sleep(INTERVAL_SECONDS)
        for line in lines.lines(clock(), service.metrics.traffic(), service.snapshot()):
            log.info(line)

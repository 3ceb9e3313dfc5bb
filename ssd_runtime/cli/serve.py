"""`ssd-run --config engine.yaml`: the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ssd_runtime.memory.heaps import tidy_heaps
from ssd_runtime.settings.load import Loaded


def daemon(loaded: Loaded, trace: Path | None) -> int:
    """Serve until a signal; the exit status. Raises what stops the start: `ConfigError`, `ModelError`, …"""
    from ssd_runtime.server.run import open_door, serve
    from ssd_runtime.server.service import Service

    tidy_heaps()
    service = Service(loaded.settings)
    with open_door(service) as door:
        # only now: importing torch takes a while, and starts threads
        from ssd_runtime.app import Engine
        from ssd_runtime.clock import monotonic
        from ssd_runtime.engine.thread import new_event_loop
        from ssd_runtime.telemetry.sinks import Sinks
        from ssd_runtime.telemetry.trace import open_trace

        lanes = service.metrics.lanes
        records = lanes if trace is None else Sinks(lanes, open_trace(trace, monotonic))

        def engine(service: Service) -> Engine:
            return Engine(loaded, progress=service.report, trace=records, plugins=[service.metrics])

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(serve(service, engine, door))

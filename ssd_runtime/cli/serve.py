"""`ssd-run --config engine.yaml`: the daemon."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ssd_runtime.settings.load import Loaded


def daemon(loaded: Loaded, trace: Path | None) -> int:
    """Serve until a signal; the exit status. Raises what stops the start: `ConfigError`, `ModelError`, …"""
    from ssd_runtime.server.run import listen, serve
    from ssd_runtime.server.service import Service

    listener = listen(loaded.settings.server)
    # Only now, as it takes a while: loading torch holds the interpreter, so it is done before serving.
    from ssd_runtime.app import Engine
    from ssd_runtime.engine.thread import new_event_loop

    def engine(service: Service) -> Engine:
        return Engine(loaded, progress=service.report, trace=trace, plugins=[service.metrics])

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(Service(loaded.settings), engine, listener))

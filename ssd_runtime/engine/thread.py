"""The engine's own event loop on its own thread, so that no caller's loop can delay a round."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from ssd_runtime.errors import EngineClosedError


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where uvloop exists, asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """Runs one coroutine to its end on a loop and thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = new_event_loop()
        self._name = name
        self._thread: threading.Thread | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the coroutine is still running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Start the thread; `main` reports its own errors."""
        self._thread = threading.Thread(target=self._run, args=(main,), name=self._name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run `function` on the loop soon, from any thread. Raises `EngineClosedError` when it is gone."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError as error:
            raise EngineClosedError("the engine is closed") from error

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the coroutine to end; False after `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_alive

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(main)
        finally:
            self._loop.close()

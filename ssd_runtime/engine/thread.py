"""The engine's own event loop on its own thread, so that no caller's loop can delay a round."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.errors import EngineClosedError

log = structlog.get_logger(__name__)

BEAT_SECONDS = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop loop where uvloop exists, asyncio's own elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class LoopThread:
    """Runs one coroutine to its end on a loop and thread of its own.

    The loop beats once in `BEAT_SECONDS` as long as nothing blocks it.
    """

    def __init__(self, name: str, clock: Clock = monotonic) -> None:
        self._loop = new_event_loop()
        self._name = name
        self._clock = clock
        self._last_beat = clock()
        self._on_beat: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._takes_calls = True

    @property
    def is_alive(self) -> bool:
        """Whether the coroutine is still running."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def silence(self) -> float:
        """Seconds since the last beat: how long something may have blocked the loop."""
        return self._clock() - self._last_beat

    def start(self, main: Coroutine[Any, Any, None], on_beat: Callable[[], None] = lambda: None) -> None:
        """Start the thread; `on_beat` is called on the loop with every beat."""
        self._on_beat = on_beat
        self._last_beat = self._clock()
        self._thread = threading.Thread(target=self._run, args=(main,), name=self._name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Run `function` on the loop soon, from any thread. Raises `EngineClosedError` when it is gone.

        What does not raise is run, also at the very end.
        """
        with self._lock:
            if not self._takes_calls:
                raise EngineClosedError("the engine is closed")
            self._loop.call_soon_threadsafe(function, *arguments)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """`call` where a loop that is gone, or just ending, need not hear of it."""
        with suppress(EngineClosedError):
            self.call(function, *arguments)

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the coroutine to end; False after `timeout` seconds."""
        if self._thread is not None:
            self._thread.join(timeout)
        return not self.is_alive

    def _run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.set_event_loop(self._loop)
        self._timer: asyncio.Handle = self._loop.call_soon(self._beat)
        try:
            self._loop.run_until_complete(main)
        except Exception as error:
            log.error("the engine's thread ends", error=repr(error))
        finally:
            with self._lock:
                self._takes_calls = False
            self._timer.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))  # carries out the calls that came before
            self._loop.close()

    def _beat(self) -> None:
        self._last_beat = self._clock()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)
        self._on_beat()

"""A lane: one thread that owns a device and carries out commands in order.

The engine's loop submits small frozen commands and awaits their results; it never runs a model.
What a command does is the worker's business; the lane adds the thread, the hand-over and the
record of when the command ran.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

from ssd_runtime.clock import Clock
from ssd_runtime.device.cores import confine_thread, let_others_go_first
from ssd_runtime.errors import EngineClosedError


class Command(Protocol):
    """What a lane carries out; the properties describe it in the trace."""

    @property
    def kind(self) -> str: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


class Worker(Protocol):
    """Carries out commands on the lane's own thread; it may block, and may raise."""

    def execute(self, command: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class CommandRecord:
    """One command that a lane carried out; times in seconds of the lane's clock.

    passes: forward passes that the command's result counts; 0 where it counts none.
    """

    lane: str
    kind: str
    rows: int
    tokens: int
    started: float
    finished: float
    passes: int = 0


_Item = tuple[Command, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Lane:
    """Runs a worker on a thread confined to `cores` (None: unconfined)."""

    def __init__(
        self,
        name: str,
        worker: Worker,
        *,
        clock: Clock,
        cores: frozenset[int] | None = None,
        setup: Callable[[], None] = lambda: None,
        on_record: Callable[[CommandRecord], None] | None = None,
    ) -> None:
        """`setup` runs once on the lane's thread, before the first command; if it raises, all of them do."""
        self.name = name
        self.cores = cores
        self._worker = worker
        self._clock = clock
        self._setup = setup
        self._on_record = on_record
        self._items: SimpleQueue[_Item | None] = SimpleQueue()
        self._closed = False
        self._ended = False
        self._thread = threading.Thread(target=self._run, name=f"ssd-{name}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; it may hang in a command all the same."""
        return not self._ended  # the thread's own answer takes several calls, and is asked for twice a round

    def submit(self, command: Command) -> asyncio.Future[Any]:
        """Queue `command`; the future belongs to the running loop. Raises `EngineClosedError`."""
        if self._closed:
            raise EngineClosedError(f"lane {self.name} is closed")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._items.put((command, loop, future))
        return future

    def close(self) -> None:
        """Finish what is queued, then end the thread; does not wait."""
        if not self._closed:
            self._closed = True
            self._items.put(None)

    def join(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the thread to end after `close`; False if it still runs."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            self._ended = True

    def _serve(self) -> None:
        _, unfit = _attempt(self._prepare)
        while (item := self._items.get()) is not None:
            command, loop, future = item
            started = self._clock()
            result, error = _attempt(self._worker.execute, command) if unfit is None else (None, unfit)
            record = None if self._on_record is None else self._record(command, result, started)
            try:
                loop.call_soon_threadsafe(self._resolve, future, result, error, record)
            except RuntimeError:
                # the loop is gone, and with it everybody who waited or will ever submit
                self.close()

    def _prepare(self) -> None:
        if self.cores is not None:
            confine_thread(self.cores)
        let_others_go_first()
        self._setup()

    def _record(self, command: Command, result: Any, started: float) -> CommandRecord:
        passes = getattr(result, "passes", 0)
        return CommandRecord(
            self.name, command.kind, command.num_rows, command.num_tokens, started, self._clock(), passes
        )

    def _resolve(
        self,
        future: asyncio.Future[Any],
        result: Any,
        error: Exception | None,
        record: CommandRecord | None,
    ) -> None:
        """Runs on the loop."""
        if record is not None and self._on_record is not None:
            self._on_record(record)
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def _attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, Exception | None]:
    """What `function` returns, and what it raises, as something that a future takes."""
    try:
        return function(*arguments), None
    except Exception as error:
        # a future refuses StopIteration, and whoever awaits it would wait for ever
        return None, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
    except BaseException as error:  # a lane outlives whatever its worker does, and so does the loop
        return None, RuntimeError(repr(error))

"""What is being waited for, on stderr, once a wait is longer than a second."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from ssd_runtime.clock import Clock, monotonic

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

QUIET_SECONDS = 1.0
REPEAT_SECONDS = 10.0
TICK_SECONDS = 0.25


class Display(Protocol):
    """Shows one wait at a time. `repeat_seconds`: the least time between two calls of `show`."""

    repeat_seconds: float

    def show(self, what: str, done: int, total: int) -> None:
        """Show how far it is; `total` 0 means unknown."""
        ...

    def clear(self) -> None:
        """The wait is over."""
        ...


class PlainDisplay:
    """A line now and then, none of them twice in a wait, for a stderr that is a file or a log."""

    repeat_seconds = REPEAT_SECONDS

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written: set[str] = set()

    def show(self, what: str, done: int, total: int) -> None:
        """Write one line, unless it says what one before it said."""
        text = f"{what} …{_how_far(done, total)}"
        if text not in self._written:
            self._written.add(text)
            self._write(text)

    def clear(self) -> None:
        """Lines stay where they are; the next wait may say the same again."""
        self._written.clear()


def _how_far(done: int, total: int) -> str:
    """A single step is done or not; of several, the share."""
    if total == 1:
        return " done" if done else ""
    if total:
        return f" {100 * done // total}% ({done} of {total})"
    return f" ({done})" if done else ""


class RichDisplay:
    """One moving line on a terminal, gone when the wait is over."""

    repeat_seconds = 0.0

    def __init__(self) -> None:
        self._progress: RichProgress | None = None

    def show(self, what: str, done: int, total: int) -> None:
        """Draw the line, or draw it again."""
        progress = self._progress or self._begin()
        progress.update(progress.task_ids[0], description=what, completed=done, total=total or None)

    def clear(self) -> None:
        """Remove the line and give the cursor back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _begin(self) -> RichProgress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.add_task("")
        self._progress.start()
        return self._progress


class WaitLine:
    """Takes reports of progress from any thread and shows those of waits that are long.

    Called with (what, done, total), as engines report. `tick` shows a wait that reports nothing.
    """

    def __init__(self, display: Display, clock: Clock = monotonic) -> None:
        self._display = display
        self._clock = clock
        self._lock = threading.RLock()  # a signal handler may clear in the midst of a tick
        self._report: tuple[str, int, int] | None = None
        self._is_shown = False
        self._next = 0.0

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` parts of `what` are done; `total` 0 means unknown."""
        with self._lock:
            if self._report is None or self._report[0] != what:
                self._next = self._clock() + QUIET_SECONDS
                self._is_shown = False
            elif self._is_shown and 0 < total <= done:
                self._next = self._clock()  # what was begun on the screen is ended there
            self._report = (what, done, total)
            self._show()

    def tick(self) -> None:
        """Show the wait if it is time to."""
        with self._lock:
            self._show()

    def clear(self) -> None:
        """Nothing is being waited for."""
        with self._lock:
            self._report = None
            self._display.clear()

    def _show(self) -> None:
        if self._report is not None and self._clock() >= self._next:
            self._display.show(*self._report)
            self._is_shown = True
            self._next = self._clock() + self._display.repeat_seconds


def wait_line(note: Callable[[str], None]) -> WaitLine:
    """The wait line that fits stderr; `note` writes a line to it."""
    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    return WaitLine(RichDisplay() if is_terminal else PlainDisplay(note))


@asynccontextmanager
async def ticking(line: WaitLine) -> AsyncIterator[None]:
    """Keep `line` up to date while the body runs, and clear it at the end."""
    ticks = asyncio.create_task(_tick(line))
    try:
        yield
    finally:
        ticks.cancel()
        line.clear()


async def _tick(line: WaitLine) -> None:
    while True:
        await asyncio.sleep(TICK_SECONDS)
        line.tick()

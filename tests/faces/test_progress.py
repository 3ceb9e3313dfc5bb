"""When a wait is shown: after a second, not for every report, and never after it is over."""

from __future__ import annotations

import sys

import pytest

from ssd_runtime.cli.progress import PlainDisplay, RichDisplay, WaitLine
from ssd_runtime.clock import ManualClock


class Waiting:
    """A wait line with a clock that is moved by hand and a list for a terminal."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.clock = ManualClock()
        self.line = WaitLine(PlainDisplay(self.shown.append), self.clock)


def test_short_waits_are_not_shown() -> None:
    """Up to a second nothing is written."""
    wait = Waiting()
    for done in range(100):
        wait.line("loading", done, 100)
        wait.clock.advance(0.009)
    assert wait.shown == []


def test_a_long_wait_is_shown_after_a_second_and_then_now_and_then() -> None:
    """One line after a second, the next ones ten seconds apart."""
    wait = Waiting()
    for second in range(25):
        wait.line("loading", second, 25)
        wait.clock.advance(1.0)
    assert wait.shown == ["loading … 4% (1 of 25)", "loading … 44% (11 of 25)", "loading … 84% (21 of 25)"]


def test_a_wait_that_reports_nothing_is_shown_by_ticks() -> None:
    """One report at the beginning is enough."""
    wait = Waiting()
    wait.line("starting", 0, 0)
    wait.clock.advance(1.5)
    wait.line.tick()
    assert wait.shown == ["starting …"]


def test_each_wait_has_its_own_second() -> None:
    """Many short waits in a row are no long one."""
    wait = Waiting()
    for step in range(10):
        wait.line(f"step {step}", 0, 0)
        wait.clock.advance(0.9)
    assert wait.shown == []


def test_nothing_is_shown_after_the_wait_is_over() -> None:
    """Clearing ends it, and the next wait of the same name starts anew."""
    wait = Waiting()
    wait.line("answers", 0, 0)
    wait.line.clear()
    wait.clock.advance(5.0)
    wait.line.tick()
    wait.line("answers", 3, 0)
    wait.line.tick()
    assert wait.shown == []
    wait.clock.advance(1.0)
    wait.line.tick()
    assert wait.shown == ["answers … (3)"]


def test_a_terminal_gets_one_moving_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Drawn by rich, on stderr only, and removable at any time."""
    display = RichDisplay()
    display.clear()
    display.show("loading", 1, 2)
    display.show("loading", 2, 2)
    display.clear()
    display.clear()
    out, err = capsys.readouterr()
    assert out == ""
    assert sys.stderr is not None
    assert "\x1b" not in err

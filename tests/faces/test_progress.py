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


def test_the_same_state_is_written_once() -> None:
    """However long it lasts, and when the second of two models is loaded under the same name."""
    wait = Waiting()
    for _ in range(2):
        for what in ("starting", "loading"):
            wait.line(what, 0, 0)
            for _ in range(30):
                wait.clock.advance(1.0)
                wait.line.tick()
    assert wait.shown == ["starting …", "loading …"]


def test_what_was_shown_is_shown_to_its_end() -> None:
    """At once, since the next wait may begin before ten seconds are over."""
    wait = Waiting()
    for done in (0, 1, 25):
        wait.line("converting", done, 25)
        wait.clock.advance(1.5)
    wait.line("warming up", 0, 0)
    assert wait.shown == ["converting … 4% (1 of 25)", "converting … 100% (25 of 25)"]


def test_a_single_step_is_done_or_not() -> None:
    """A share of one would be 0 % or nothing."""
    wait = Waiting()
    wait.line("loading", 0, 1)
    wait.clock.advance(2.0)
    wait.line.tick()
    wait.line("loading", 1, 1)
    assert wait.shown == ["loading …", "loading … done"]


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

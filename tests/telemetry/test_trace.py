"""The trace: valid at any moment, exact when read back."""

from __future__ import annotations

import json
import re
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import TraceWriter, read_trace

VERIFY = CommandRecord("target", "verify", 2, 10, 1.0, 1.25)
BUILD = CommandRecord("draft", "build", 2, 8, 1.125, 1.1875, passes=3)
HIT = RoundRecord("a", "cache", True, 4, 3, 4, bonus_rank=1)
MISS = RoundRecord('b "quoted"\n✓', "none", True, 0, 0, 1)


def write(path: Path) -> TraceWriter:
    """A writer that has written two commands and two rounds."""
    writer = TraceWriter(path, ManualClock(2.0))
    writer.command(VERIFY)
    writer.command(BUILD)
    writer.round(HIT)
    writer.round(MISS)
    return writer


def test_records_survive_the_file(tmp_path: Path) -> None:
    """What was written is read back, equal and in order."""
    write(tmp_path / "t.json").close()
    assert read_trace(tmp_path / "t.json") == ([VERIFY, BUILD], [HIT, MISS])


def test_touching_commands_do_not_overlap_after_rounding(tmp_path: Path) -> None:
    """A command that starts when another ends still does so after the times were written."""
    times = [123456.1 + 0.0123456789 * step for step in range(50)]
    with TraceWriter(tmp_path / "t.json", ManualClock()) as writer:
        for started, finished in pairwise(times):
            writer.command(CommandRecord("target", "verify", 1, 1, started, finished))
    commands, _ = read_trace(tmp_path / "t.json")
    assert [c.finished for c in commands[:-1]] == [c.started for c in commands[1:]]


def test_events_have_the_form_that_viewers_expect(tmp_path: Path) -> None:
    """A closed trace is one JSON array: named threads, durations and instants in microseconds."""
    write(tmp_path / "t.json").close()
    events = json.loads((tmp_path / "t.json").read_text())
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    verify = next(e for e in events if e["name"] == "verify")
    assert (verify["ph"], verify["ts"], verify["dur"]) == ("X", 1_000_000, 250_000)
    assert names[verify["tid"]] == "target"
    instant = next(e for e in events if e["ph"] == "i")
    assert (instant["ts"], instant["s"], names[instant["tid"]]) == (2_000_000, "t", "rounds")
    assert instant["args"]["request_id"] == "a"
    assert instant["args"]["bonus_rank"] == 1


def test_trace_is_readable_while_it_is_written(tmp_path: Path) -> None:
    """Nothing waits in a buffer: a process that dies leaves everything up to that moment."""
    writer = write(tmp_path / "t.json")
    assert read_trace(tmp_path / "t.json") == ([VERIFY, BUILD], [HIT, MISS])
    assert json.loads((tmp_path / "t.json").read_text() + "]")
    writer.close()


def test_half_a_last_line_is_left_out(tmp_path: Path) -> None:
    """A trace cut off within its last event yields the events before it."""
    path = tmp_path / "t.json"
    write(path).close()
    text = path.read_text().removesuffix("\n]\n")
    path.write_text(text[:-5])
    assert read_trace(path) == ([VERIFY, BUILD], [HIT])


@pytest.mark.parametrize("text", ["", "{}", "[\nrubbish\n]\n"])
def test_other_files_are_refused_by_name(tmp_path: Path, text: str) -> None:
    """Something that is not a trace is an error with file and line, not an empty trace."""
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"t\.json:[12]: "):
        read_trace(path)


def test_threads_may_write_at_once(tmp_path: Path) -> None:
    """Events from several threads are whole lines, and none is lost."""
    writer = TraceWriter(tmp_path / "t.json", ManualClock())

    def write_often(record: CommandRecord) -> None:
        for _ in range(200):
            writer.command(record)

    threads = [threading.Thread(target=write_often, args=(record,)) for record in (VERIFY, BUILD)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    commands, _ = read_trace(tmp_path / "t.json")
    assert (commands.count(VERIFY), commands.count(BUILD)) == (200, 200)


def test_events_after_close_are_dropped(tmp_path: Path) -> None:
    """A late command of a lane does not break the closed file, and closing twice is harmless."""
    writer = write(tmp_path / "t.json")
    writer.close()
    writer.command(VERIFY)
    writer.close()
    assert read_trace(tmp_path / "t.json")[0] == [VERIFY, BUILD]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_ends_the_trace_and_nothing_else() -> None:
    """When writing fails there is one warning, and later events are dropped in silence."""
    with capture_logs() as logs, TraceWriter(Path("/dev/full"), ManualClock()) as writer:
        writer.command(VERIFY)
    assert [entry["event"] for entry in logs] == ["the trace ends here: it cannot be written"]


def test_traces_from_before_passes_were_counted_are_read(tmp_path: Path) -> None:
    """They say nothing of passes, so none are counted."""
    path = tmp_path / "t.json"
    write(path).close()
    path.write_text(re.sub(r', "passes": \d+', "", path.read_text()))
    assert [command.passes for command in read_trace(path)[0]] == [0, 0]

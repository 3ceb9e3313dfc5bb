"""The trace: what the lanes did and what became of every proposal, in Chrome's trace event format.

One JSON array, one event a line, written as things happen. The format allows the closing bracket
to be missing, so the file opens in Perfetto even where the process died. Times are stored in
microseconds with three decimals: whole nanoseconds, so that what touches does not overlap.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import structlog

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.errors import ConfigError
from ssd_runtime.stats import RoundRecord

log = structlog.get_logger(__name__)

COMMAND = "command"
ROUND = "round"
_ROUNDS_TID = 0
_COMMAND_FIELDS = ("lane", "kind", "rows", "tokens", "passes")


class RecordSink(Protocol):
    """Takes an engine's records as they come, on any thread; `close` ends them."""

    def command(self, record: CommandRecord) -> None: ...
    def round(self, record: RoundRecord) -> None: ...
    def close(self) -> None: ...


class TraceWriter:
    """Writes `path` event by event; callable from any thread, about ten microseconds a call.

    Every event goes to the operating system at once. A failing disk ends the trace with a warning
    and nothing else. `OSError` from the constructor when `path` cannot be created.
    """

    def __init__(self, path: Path, clock: Clock = monotonic) -> None:
        self._path = path
        self._clock = clock
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._tids: dict[str, int] = {}
        self._file = path.open("w", encoding="utf-8", buffering=1)
        self._write(self._line("M", "process_name", 0, args={"name": "ssd_runtime"}), separator="[\n")
        self._write(self._thread_name(_ROUNDS_TID, "rounds"))

    def command(self, record: CommandRecord) -> None:
        """One duration event on the track of the record's lane."""
        started, finished = _nanoseconds(record.started), _nanoseconds(record.finished)
        self._write(
            self._line(
                "X",
                record.kind,
                self._tid(record.lane),
                cat=COMMAND,
                ts=started / 1000,
                dur=(finished - started) / 1000,
                args={name: getattr(record, name) for name in _COMMAND_FIELDS},
            )
        )

    def round(self, record: RoundRecord) -> None:
        """One instant on the track `rounds`, at the clock's present time."""
        self._write(
            self._line(
                "i",
                f"{record.source} {record.accepted}/{record.proposed}",
                _ROUNDS_TID,
                cat=ROUND,
                ts=_nanoseconds(self._clock()) / 1000,
                s="t",
                args=record._asdict(),
            )
        )

    def close(self) -> None:
        """Write the closing bracket; further events are dropped. May be called twice."""
        self._write("\n]\n", separator="")
        with self._lock:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tid(self, lane: str) -> int:
        with self._lock:
            known = self._tids.get(lane)
            tid = self._tids.setdefault(lane, len(self._tids) + 1)
        if known is None:
            self._write(self._thread_name(tid, lane))
        return tid

    def _thread_name(self, tid: int, name: str) -> str:
        return self._line("M", "thread_name", tid, args={"name": name})

    def _line(self, phase: str, name: str, tid: int, **rest: Any) -> str:
        return json.dumps({"ph": phase, "name": name, "pid": self._pid, "tid": tid, **rest})

    def _write(self, text: str, separator: str = ",\n") -> None:
        try:
            with self._lock:
                if not self._file.closed:
                    self._file.write(separator + text)
                    self._file.flush()
        except OSError as error:
            log.warning("the trace ends here: it cannot be written", path=str(self._path), error=str(error))
            self._abandon()

    def _abandon(self) -> None:
        with self._lock:
            try:
                self._file.close()
            except OSError:
                return  # closing flushes, and fails as writing did


def open_trace(path: Path, clock: Clock) -> TraceWriter:
    """A writer for the path that a user named; raises `ConfigError` where it cannot be created."""
    try:
        return TraceWriter(path, clock)
    except OSError as error:
        raise ConfigError(f"--trace {path}: cannot be written: {error.strerror}") from None


def read_trace(path: Path) -> tuple[list[CommandRecord], list[RoundRecord]]:
    """The records of a trace in the order written, also of one that was cut off while being written.

    Raises `OSError`, and `ValueError` with file and line where something else than a trace stands.
    """
    commands, rounds = [], []
    for event in _events(path):
        if event.get("cat") == COMMAND:
            commands.append(_command(event))
        elif event.get("cat") == ROUND:
            args = event["args"]  # a trace of an earlier version has fewer
            rounds.append(RoundRecord(**{name: args[name] for name in RoundRecord._fields if name in args}))
    return commands, rounds


def _events(path: Path) -> Iterator[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines or lines[0].strip() != "[":
        raise ValueError(f"{path}:1: expected '[' on a line of its own, the start of a trace")
    for number, line in enumerate(lines[1:], 2):
        text = line.strip().removesuffix(",")
        if text in ("", "]"):
            continue
        try:
            yield json.loads(text)
        except ValueError as error:
            if number == len(lines):
                return  # the process died while it wrote this line
            raise ValueError(f"{path}:{number}: not a trace event: {error}") from error


def _command(event: dict[str, Any]) -> CommandRecord:
    args = event["args"]
    started = round(event["ts"] * 1000)
    finished = started + round(event["dur"] * 1000)
    return CommandRecord(
        args["lane"],
        args["kind"],
        args["rows"],
        args["tokens"],
        started / 1e9,
        finished / 1e9,
        args.get("passes", 0),  # traces of earlier versions do not say
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)

"""Several takers of an engine's records."""

from __future__ import annotations

from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import RecordSink


class Sinks:
    """Hands every record on to each of `sinks`; a `RecordSink`."""

    def __init__(self, *sinks: RecordSink) -> None:
        self._sinks = sinks

    def command(self, record: CommandRecord) -> None:
        """One command of a lane."""
        for sink in self._sinks:
            sink.command(record)

    def round(self, record: RoundRecord) -> None:
        """One verdict."""
        for sink in self._sinks:
            sink.round(record)

    def close(self) -> None:
        """No more records come."""
        for sink in self._sinks:
            sink.close()

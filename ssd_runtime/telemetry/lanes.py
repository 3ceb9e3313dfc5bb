"""How long the lanes work, and how long the draft has nothing to do while the target verifies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.buckets import Buckets

TARGET, DRAFT = "target", "draft"


class LaneTimes:
    """Sums over the commands of an engine's lanes; a `RecordSink`.

    `command` runs on the engine's loop, the sums may be read on any thread. loop_lag: how long after a
    command's end the loop took it up, in seconds.
    """

    def __init__(self, loop_lag: Buckets, clock: Clock = monotonic) -> None:
        self.loop_lag = loop_lag
        self._clock = clock
        self._busy: dict[str, float] = {}
        self._commands: Counter[tuple[str, str]] = Counter()
        self._draft_idle = 0.0
        self._verified: tuple[float, float] | None = None
        self._drafted: deque[tuple[float, float]] = deque()

    @property
    def busy_seconds(self) -> Mapping[str, float]:
        """By lane."""
        return dict(self._busy)

    @property
    def commands(self) -> Mapping[tuple[str, str], int]:
        """How many, by lane and kind."""
        return dict(self._commands)

    @property
    def draft_idle_seconds(self) -> float:
        """Time of verifications in which the draft did nothing, up to the last verification but one."""
        return self._draft_idle

    def command(self, record: CommandRecord) -> None:
        """Count one command."""
        self.loop_lag.observe(self._clock() - record.finished)
        self._busy[record.lane] = self._busy.get(record.lane, 0.0) + record.finished - record.started
        self._commands[record.lane, record.kind] += 1
        if record.lane == DRAFT:
            self._drafted.append((record.started, record.finished))
        elif record.lane == TARGET:
            self._count_idle()
            self._verified = record.started, record.finished

    def round(self, record: RoundRecord) -> None:
        """Verdicts are counted elsewhere."""

    def close(self) -> None:
        """Nothing is held."""

    def _count_idle(self) -> None:
        """By now the draft has ended all that it did during the verification before this one."""
        if self._verified is None:
            return
        started, finished = self._verified
        busy = sum(max(0.0, min(finished, end) - max(started, begin)) for begin, end in self._drafted)
        self._draft_idle += finished - started - busy
        while self._drafted and self._drafted[0][1] <= finished:
            self._drafted.popleft()

"""Sums over the commands of the lanes, above all how long the draft has nothing to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.buckets import Buckets
from ssd_runtime.telemetry.lanes import LaneTimes
from ssd_runtime.telemetry.sinks import Sinks


def verify(started: float, finished: float) -> CommandRecord:
    return CommandRecord("target", "verify", 1, 1, started, finished)


def build(started: float, finished: float) -> CommandRecord:
    return CommandRecord("draft", "build", 1, 1, started, finished)


def times_of(*records: CommandRecord) -> LaneTimes:
    times = LaneTimes(Buckets((1.0,)), ManualClock(100.0))
    for record in records:
        times.command(record)
    return times


@pytest.mark.parametrize(
    ("builds", "idle"),
    [
        ([], 10),
        ([build(0, 10)], 0),
        ([build(-5, 20)], 0),
        ([build(2, 4)], 8),
        ([build(2, 4), build(6, 12)], 4),
        ([build(-5, 1), build(9, 12)], 8),
        ([build(-5, -1)], 10),
    ],
)
def test_the_draft_is_idle_where_only_the_target_works(builds: list[CommandRecord], idle: float) -> None:
    """Of a verification from 0 to 10; builds that end after it are known when the next one ends."""
    assert times_of(verify(0, 10), *builds, verify(30, 40)).draft_idle_seconds == pytest.approx(idle)


def test_a_verification_counts_when_the_next_has_ended() -> None:
    """By then every build that ran beside it has."""
    times = times_of(verify(0, 10))
    assert times.draft_idle_seconds == 0
    times.command(build(0, 12))
    times.command(verify(20, 30))
    assert times.draft_idle_seconds == 0
    times.command(verify(40, 50))
    assert times.draft_idle_seconds == 10


@given(st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 8), st.floats(0.1, 8)), max_size=12))
def test_idle_time_is_what_builds_leave_of_the_verifications(
    rounds: list[tuple[float, float, float]],
) -> None:
    """Against every verification beside every build; each round's build begins some time after it."""
    verified, built, now = [], [build(-1, 0)], 0.0
    for verifying, wait, building in rounds:
        begin = max(now + wait, built[-1].finished)
        verified.append(verify(now, now + verifying))
        built.append(build(begin, begin + building))
        now += verifying + 1
    pairs = [record for pair in zip(verified, built[1:], strict=True) for record in pair]
    times = times_of(*pairs, verify(now, now + 1))
    work = sum(one.finished - one.started for one in verified)
    both = sum(
        max(0.0, min(one.finished, other.finished) - max(one.started, other.started))
        for one in verified
        for other in built
    )
    assert times.draft_idle_seconds == pytest.approx(work - both)


def test_work_and_commands_are_summed_by_lane() -> None:
    """And by kind."""
    times = times_of(verify(0, 2), build(1, 4), verify(5, 6))
    assert times.busy_seconds == {"target": 3, "draft": 3}
    assert times.commands == {("target", "verify"): 2, ("draft", "build"): 1}


def test_the_loops_lag_is_how_long_a_result_waited() -> None:
    """From a command's end until the loop took it up."""
    times = times_of(verify(0, 99.5), verify(99.5, 99.9), verify(50, 60))
    assert times.loop_lag.cumulative() == [("1.0", 2), ("+Inf", 3)]
    assert times.loop_lag.sum == pytest.approx(40.6)


def test_buckets_count_what_is_not_above_their_bound() -> None:
    """As Prometheus has it: a value on a bound is below it."""
    buckets = Buckets((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 1.0, 7.0):
        buckets.observe(value)
    assert buckets.cumulative() == [("0.1", 2), ("1.0", 4), ("+Inf", 5)]


def test_several_sinks_hear_the_same() -> None:
    """Commands, rounds, and the end."""
    heard: list[tuple[int, object]] = []

    class Sink:
        def __init__(self, number: int) -> None:
            self._number = number

        def command(self, record: CommandRecord) -> None:
            heard.append((self._number, record))

        def round(self, record: RoundRecord) -> None:
            heard.append((self._number, record))

        def close(self) -> None:
            heard.append((self._number, "end"))

    sinks, record = Sinks(Sink(1), Sink(2)), RoundRecord("a", "none", False, 0, 0, 1)
    sinks.command(verify(0, 1))
    sinks.round(record)
    sinks.close()
    assert heard == [(n, what) for what in (verify(0, 1), record, "end") for n in (1, 2)]

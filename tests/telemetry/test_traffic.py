"""The lines that users search their logs for."""

from __future__ import annotations

import re

from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.telemetry.traffic import Traffic, TrafficLines, difference

NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
SPECULATION = re.compile(
    rf"SpecDecoding metrics: Mean acceptance length: {NUMBER}, Accepted throughput: {NUMBER} tokens/s, "
    rf"Drafted throughput: {NUMBER} tokens/s, Accepted: [0-9]+ tokens, Drafted: [0-9]+ tokens, "
    rf"Per-position acceptance rate: {NUMBER}(?:, {NUMBER})*, Avg Draft acceptance rate: {NUMBER}%"
)
"""As scripts in use take vLLM's line apart."""
ENGINE = EngineSnapshot(running=2, waiting=1, used_blocks=1, num_blocks=8)


def record(proposed: int, accepted: int, source: str = "cache") -> RoundRecord:
    return RoundRecord("a", source, True, proposed, accepted, accepted + 1)


def told(lines: TrafficLines, now: float, *traffic: object) -> list[str]:
    return list(lines.lines(now, Traffic(*traffic), ENGINE))  # type: ignore[arg-type]  # its fields


def test_the_line_of_speculation_is_vllms() -> None:
    """Two rounds with a draft, one without: means and rates are over the two."""
    rounds = RoundTotals.of([record(3, 3), record(3, 1), record(0, 0, "none")])
    _, line = told(TrafficLines(0.0), 10.0, 5, 7, rounds)
    assert SPECULATION.fullmatch(line)
    assert line == (
        "SpecDecoding metrics: Mean acceptance length: 3.00, Accepted throughput: 0.40 tokens/s, "
        "Drafted throughput: 0.60 tokens/s, Accepted: 4 tokens, Drafted: 6 tokens, "
        "Per-position acceptance rate: 1.000, 0.500, 0.500, Avg Draft acceptance rate: 66.7%"
    )


def test_the_other_line_says_what_the_engine_did() -> None:
    """Tokens by time, who runs and waits, memory, and how often the outcome was prepared."""
    [line, _] = told(TrafficLines(0.0), 10.0, 50, 70, RoundTotals.of([record(3, 3), record(2, 0, "ngram")]))
    assert line == (
        "Avg prompt throughput: 5.0 tokens/s, Avg generation throughput: 7.0 tokens/s, Running: 2 reqs, "
        "Waiting: 1 reqs, KV cache usage: 12.5%, Outcome cache hit rate: 50.0%"
    )


def test_a_line_is_about_its_interval_alone() -> None:
    """What was told before is not told again."""
    lines, first = TrafficLines(0.0), [record(3, 3), record(3, 3)]
    told(lines, 10.0, 5, 8, RoundTotals.of(first))
    _, line = told(lines, 20.0, 5, 9, RoundTotals.of([*first, record(4, 0)]))
    assert "Mean acceptance length: 1.00" in line
    assert "Accepted: 0 tokens, Drafted: 4 tokens, Per-position acceptance rate: 0.000, 0.000, 0.000" in line


def test_without_traffic_nothing_is_said() -> None:
    """And without drafts nothing of drafts."""
    lines = TrafficLines(0.0)
    assert told(lines, 10.0) == []
    assert len(told(lines, 20.0, 0, 4, RoundTotals.of([record(0, 0, "none")]))) == 1
    assert told(lines, 30.0, 0, 4, RoundTotals.of([record(0, 0, "none")])) == []


def test_a_difference_counts_only_what_is_new() -> None:
    """Every field; sums over all records of an interval."""
    first, second = [record(3, 2), record(1, 0, "ngram")], [record(4, 4), record(0, 0, "none"), record(3, 2)]
    later, earlier = RoundTotals.of([*first, *second]), RoundTotals.of(first)
    found, expected = difference(later, earlier), RoundTotals.of(second)
    found.histograms = {length: counts for length, counts in found.histograms.items() if any(counts)}
    assert found == expected

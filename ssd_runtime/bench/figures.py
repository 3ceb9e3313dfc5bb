"""What the columns mean: figures from answers and records. Pure functions; seconds throughout.

None where there is nothing to count, never a division by zero.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from ssd_runtime.bench.answering import Streamed
from ssd_runtime.device.lane import CommandRecord

VERIFY, BUILD = "verify", "build"
Interval = tuple[float, float]


def decoded_tokens(answers: Iterable[Streamed]) -> int:
    """Tokens that came after each answer's first piece."""
    return sum(count for answer in answers for _, count in answer.pieces[1:])


def decode_seconds(answers: Iterable[Streamed]) -> float:
    """Time during which at least one answer was between its first piece and its last."""
    spans = [(answer.pieces[0][0], answer.pieces[-1][0]) for answer in answers if answer.pieces]
    return sum(end - start for start, end in merged(spans))


def first_token_seconds(answers: Iterable[Streamed]) -> list[float]:
    """For each answer, from its submission to its first token."""
    return [answer.pieces[0][0] - answer.submitted for answer in answers if answer.pieces]


def gap_seconds(answers: Iterable[Streamed]) -> list[float]:
    """The waits of a reader: from each piece of an answer to the next."""
    return [later - earlier for a in answers for (earlier, _), (later, _) in pairwise(a.pieces)]


def busy_seconds(commands: Iterable[CommandRecord]) -> dict[str, float]:
    """For each lane, how long it worked."""
    busy: dict[str, float] = defaultdict(float)
    for command in commands:
        busy[command.lane] += command.finished - command.started
    return dict(busy)


def span_seconds(commands: Sequence[CommandRecord]) -> float:
    """From the first command's start to the last one's end."""
    if not commands:
        return 0.0
    return max(c.finished for c in commands) - min(c.started for c in commands)


def python_seconds(commands: Sequence[CommandRecord]) -> list[float]:
    """For each verification that has a next one: how long no lane worked until that one started.

    That is the engine's loop, and the two hand-overs between threads.
    """
    starts = sorted(command.started for command in commands if command.kind == VERIFY)
    rounds = [0.0] * len(starts)
    busy = merged((command.started, command.finished) for command in commands)
    for (_, free), (taken, _) in pairwise(busy):
        index = bisect_right(starts, free) - 1
        if index >= 0:
            rounds[index] += taken - free
    return rounds[:-1]


def draft_pass_seconds(commands: Iterable[CommandRecord]) -> list[float]:
    """For each build, the mean time of its passes, sampling and bookkeeping included."""
    return [(c.finished - c.started) / c.passes for c in commands if c.kind == BUILD and c.passes]


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union of the intervals as disjoint ones, ascending."""
    union: list[Interval] = []
    for start, end in sorted(intervals):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The value below which `percent` of them lie, by linear interpolation."""
    if not values:
        return None
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def ratio(numerator: float, denominator: float) -> float | None:
    """None where there is nothing to divide by."""
    return numerator / denominator if denominator else None

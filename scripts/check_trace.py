"""Recompute every summary from a trace and compare it with the answers of the same run.

    python scripts/check_trace.py TRACE [--answers answers.jsonl] [--mode ssd]

Exit status 0 when everything agrees, 1 on a mismatch (each is named on stderr), 2 on bad usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.telemetry.trace import read_trace

TARGET_KINDS = frozenset({"verify"})
DRAFT_KINDS = frozenset({"draft", "build"})
COUNTED = ("rounds", "hits", "misses", "draft_tokens", "accepted_tokens", "accepted_per_position")
Interval = tuple[float, float]


@dataclass(slots=True)
class Claims:
    """What the answers say of one request id; several answers may share an id."""

    totals: RoundTotals = field(default_factory=RoundTotals)
    completion_tokens: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Check one trace; the exit status."""
    options = _parser().parse_args(arguments)
    commands, rounds = read_trace(options.trace)
    claims, modes = _read_answers(options.answers) if options.answers else ({}, set())
    problems = [*round_problems(rounds), *lane_problems(commands), *answer_problems(rounds, claims)]
    for mode in {options.mode} if options.mode else modes if len(modes) == 1 else ():
        problems += mode_problems(mode, commands, rounds)
    for line in (*_summary(rounds), *_lane_summary(commands)):
        sys.stdout.write(line + "\n")
    for problem in problems:
        sys.stderr.write(f"{options.trace}: {problem}\n")
    return 1 if problems else 0


def round_problems(rounds: Iterable[RoundRecord]) -> Iterator[str]:
    """What is impossible in single verdicts and in the sums over a request."""
    for number, record in enumerate(rounds, 1):
        where = f"round {number} of {record.request_id!r}"
        if not 0 <= record.accepted <= record.proposed:
            yield f"{where}: {record.accepted} of {record.proposed} accepted"
        if not record.accepted <= record.emitted <= record.accepted + 1:
            yield f"{where}: {record.emitted} emitted, {record.accepted} accepted"
    for name, totals in _per_request(rounds).items():
        yield from _total_problems(name, totals)


def _total_problems(name: str, totals: RoundTotals) -> Iterator[str]:
    positions = totals.accepted_per_position
    if any(later > earlier for earlier, later in pairwise(positions)):
        yield f"{name!r}: accepted per position increases: {positions}"
    if sum(positions) != totals.accepted_tokens:
        yield f"{name!r}: accepted per position {positions} does not sum to {totals.accepted_tokens}"
    for rate in (totals.acceptance_rate, totals.hit_rate):
        if rate is not None and not 0 <= rate <= 1:
            yield f"{name!r}: a rate of {rate}"


def lane_problems(commands: Iterable[CommandRecord]) -> Iterator[str]:
    """Commands of one lane that overlap: a lane does one thing at a time."""
    for lane, intervals in _by_lane(commands).items():
        for (_, finished), (started, _) in pairwise(intervals):
            if started < finished:
                yield f"lane {lane!r}: a command starts at {started:.6f} before one ends at {finished:.6f}"


def answer_problems(rounds: Iterable[RoundRecord], claims: dict[str, Claims]) -> Iterator[str]:
    """Where an answer's statistics are not the sum over its rounds."""
    traced = _per_request(rounds)
    emitted: dict[str, int] = defaultdict(int)
    for record in rounds:
        emitted[record.request_id] += record.emitted
    for name, claim in claims.items():
        totals = traced.get(name, RoundTotals())
        for counted in COUNTED:
            got, expected = getattr(claim.totals, counted), getattr(totals, counted)
            if got != expected:
                yield f"answer {name!r}: {counted} is {got}, the trace says {expected}"
        if claim.completion_tokens != emitted[name]:
            yield f"answer {name!r}: {claim.completion_tokens} tokens, the trace says {emitted[name]}"


def mode_problems(
    mode: str, commands: Sequence[CommandRecord], rounds: Sequence[RoundRecord]
) -> Iterator[str]:
    """Where a run was not what its mode says."""
    drafts = {command.kind for command in commands} & DRAFT_KINDS
    lookups = sum(record.looked_up for record in rounds)
    if mode == "autoregressive" and (drafts or any(record.proposed for record in rounds)):
        yield f"mode autoregressive, but something was drafted: {sorted(drafts) or 'proposals'}"
    if mode in ("autoregressive", "speculative") and lookups:
        yield f"mode {mode}, but {lookups} rounds looked into the outcome cache"
    if mode == "speculative" and "build" in drafts:
        yield "mode speculative, but branches were built"
    if mode == "ssd" and not overlap_share(commands):
        yield "mode ssd, but no build ran while the target verified"


def overlap_share(commands: Sequence[CommandRecord]) -> float | None:
    """The share of the builds' time during which a target command ran; None without builds."""
    builds = [(c.started, c.finished) for c in commands if c.kind == "build"]
    targets = [(c.started, c.finished) for c in commands if c.kind in TARGET_KINDS]
    total = sum(finished - started for started, finished in builds)
    return _overlap(sorted(builds), sorted(targets)) / total if total else None


def _overlap(ours: Sequence[Interval], theirs: Sequence[Interval]) -> float:
    """Seconds that two sorted sequences of disjoint intervals share."""
    shared, i, j = 0.0, 0, 0
    while i < len(ours) and j < len(theirs):
        shared += max(0.0, min(ours[i][1], theirs[j][1]) - max(ours[i][0], theirs[j][0]))
        if ours[i][1] <= theirs[j][1]:
            i += 1
        else:
            j += 1
    return shared


def _per_request(rounds: Iterable[RoundRecord]) -> dict[str, RoundTotals]:
    totals: dict[str, RoundTotals] = defaultdict(RoundTotals)
    for record in rounds:
        totals[record.request_id].add(record)
    return totals


def _by_lane(commands: Iterable[CommandRecord]) -> dict[str, list[Interval]]:
    lanes: dict[str, list[Interval]] = defaultdict(list)
    for command in commands:
        lanes[command.lane].append((command.started, command.finished))
    return {lane: sorted(intervals) for lane, intervals in lanes.items()}


def _read_answers(path: Path) -> tuple[dict[str, Claims], set[str]]:
    claims: dict[str, Claims] = defaultdict(Claims)
    modes = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        answer = json.loads(line) if line.strip() else {}
        if "speculation" in answer:
            _count(claims[str(answer["id"])], answer)
            modes.add(answer["speculation"]["mode"])
    return claims, modes


def _count(claim: Claims, answer: dict[str, Any]) -> None:
    said, totals = answer["speculation"], claim.totals
    for counted in COUNTED[:-1]:
        setattr(totals, counted, getattr(totals, counted) + said[counted])
    positions, more = totals.accepted_per_position, said["accepted_per_position"]
    positions.extend([0] * (len(more) - len(positions)))
    for position, count in enumerate(more):
        positions[position] += count
    claim.completion_tokens += answer["usage"]["completion_tokens"]


def _summary(rounds: Sequence[RoundRecord]) -> Iterator[str]:
    per_request = _per_request(rounds)
    for name, totals in {"total": RoundTotals.of(rounds), **per_request}.items():
        yield (
            f"{name}: rounds {totals.rounds}, hits {totals.hits}, misses {totals.misses}, "
            f"draft tokens {totals.draft_tokens}, accepted {totals.accepted_tokens} "
            f"{totals.accepted_per_position}, acceptance {_rate(totals.acceptance_rate)}, "
            f"tokens a round {_rate(totals.mean_acceptance_length)}, hit rate {_rate(totals.hit_rate)}"
        )


def _lane_summary(commands: Sequence[CommandRecord]) -> Iterator[str]:
    if not commands:
        return
    span = max(c.finished for c in commands) - min(c.started for c in commands)
    for lane, intervals in _by_lane(commands).items():
        busy = sum(finished - started for started, finished in intervals) / span if span else 0.0
        yield f"lane {lane}: {len(intervals)} commands, busy {busy:.3f}, idle {1 - busy:.3f}"
    yield f"builds inside target commands: {_rate(overlap_share(commands))}"


def _rate(rate: float | None) -> str:
    return "none" if rate is None else f"{rate:.3f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Recompute every summary from a trace.")
    parser.add_argument("trace", type=Path, help="a file that --trace wrote")
    parser.add_argument("--answers", type=Path, help="the JSON lines that the same run answered")
    parser.add_argument("--mode", help="check this mode's promise; default: the mode all answers name")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""One row of the table: a mode in a cell, from all that was measured of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ssd_runtime.bench import figures
from ssd_runtime.bench.answering import Pass
from ssd_runtime.bench.plan import Cell
from ssd_runtime.stats import RoundTotals
from ssd_runtime.types import Mode


@dataclass(frozen=True, slots=True)
class Sample:
    """One turn's result. place: how many modes had this block before it."""

    repetition: int
    block: int
    place: int
    result: Pass


@dataclass(frozen=True, slots=True)
class Row:
    """The figures, as defined in docs/benchmarks.md. None where there is nothing to count."""

    prompts: str
    temperature: float
    batch: int
    mode: str
    cores: str
    tokens_per_second: float | None
    times_plain: float | None
    ceiling_tokens_per_second: float | None
    draft_pass_seconds: float | None
    first_token_seconds_p50: float | None
    first_token_seconds_p99: float | None
    gap_seconds_p50: float | None
    gap_seconds_p99: float | None
    acceptance_rate: float | None
    mean_acceptance_length: float | None
    hit_rate: float | None
    target_idle_share: float | None
    draft_idle_share: float | None
    python_seconds_per_round: float | None
    peak_bytes: int
    ids: str
    rounds: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_position: tuple[int, ...]


def row(
    cell: Cell, mode: str, cores: str, samples: Sequence[Sample], plain: Sequence[Sample], ids: str
) -> Row:
    """The row of `mode` from its samples; `plain`: those of plain decoding in this cell, if there are any.

    The ceiling: a chain of draft passes gives each row one token a pass, so no hit can be faster.
    """
    results = [sample.result for sample in samples]
    answers = [answer for result in results for answer in result.answers]
    totals = RoundTotals.of(record for result in results for record in result.rounds)
    first, gaps = figures.first_token_seconds(answers), figures.gap_seconds(answers)
    rate, plain_rate = tokens_per_second(samples), tokens_per_second(plain)
    draft_pass = _median(s for result in results for s in figures.draft_pass_seconds(result.commands))
    return Row(
        prompts=cell.prompts.name,
        temperature=cell.temperature,
        batch=cell.batch,
        mode=mode,
        cores=cores,
        tokens_per_second=rate,
        times_plain=rate / plain_rate if rate and plain_rate else None,
        ceiling_tokens_per_second=cell.batch / draft_pass if draft_pass and mode == Mode.SSD else None,
        draft_pass_seconds=draft_pass,
        first_token_seconds_p50=figures.percentile(first, 50),
        first_token_seconds_p99=figures.percentile(first, 99),
        gap_seconds_p50=figures.percentile(gaps, 50),
        gap_seconds_p99=figures.percentile(gaps, 99),
        acceptance_rate=totals.acceptance_rate,
        mean_acceptance_length=totals.mean_acceptance_length,
        hit_rate=totals.hit_rate,
        target_idle_share=_idle_share(results, "target"),
        draft_idle_share=_idle_share(results, "draft"),
        python_seconds_per_round=_median(s for r in results for s in figures.python_seconds(r.commands)),
        peak_bytes=max(result.peak_bytes for result in results),
        ids=ids,
        rounds=totals.rounds,
        draft_tokens=totals.draft_tokens,
        accepted_tokens=totals.accepted_tokens,
        accepted_per_position=tuple(totals.accepted_per_position),
    )


def tokens_per_second(samples: Sequence[Sample]) -> float | None:
    """The median over the repetitions; within one, all tokens by all the time."""
    rates = []
    for repetition in sorted({sample.repetition for sample in samples}):
        answers = [s.result.answers for s in samples if s.repetition == repetition]
        seconds = sum(map(figures.decode_seconds, answers))
        rates.append(figures.ratio(sum(map(figures.decoded_tokens, answers)), seconds))
    return _median(rate for rate in rates if rate is not None)


def _idle_share(results: Iterable[Pass], lane: str) -> float | None:
    """The share of the time during which a lane did nothing; None for a lane that was never used."""
    busy = span = 0.0
    for result in results:
        busy += figures.busy_seconds(result.commands).get(lane, 0.0)
        span += figures.span_seconds(result.commands)
    return 1 - busy / span if busy and span else None


def _median(values: Iterable[float]) -> float | None:
    found = list(values)
    return median(found) if found else None

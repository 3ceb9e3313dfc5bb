"""What a bench prints and writes: a table for people, JSON for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ssd_runtime import __version__
from ssd_runtime.bench import figures
from ssd_runtime.bench.rows import Row, Sample
from ssd_runtime.bench.run import Results
from ssd_runtime.stats import RoundTotals

if TYPE_CHECKING:
    from rich.table import Table

NOTHING = "–"


def _one(name: str, scale: float = 1.0, digits: int = 2) -> Callable[[Row], str]:
    """The text of one figure, scaled."""

    def cell(row: Row) -> str:
        value = getattr(row, name)
        return NOTHING if value is None else f"{scale * value:.{digits}f}"

    return cell


def _two(first: str, second: str, scale: float, digits: int) -> Callable[[Row], str]:
    """Two figures of one kind side by side."""
    cells = _one(first, scale, digits), _one(second, scale, digits)
    return lambda row: " / ".join(cell(row) for cell in cells)


COLUMNS: dict[str, Callable[[Row], str]] = {
    "batch": lambda row: str(row.batch),
    "mode": lambda row: row.mode,
    "cores": lambda row: row.cores,
    "tokens/s": _one("tokens_per_second", digits=1),
    "× plain": _one("times_plain"),
    "1/T_draft": _one("ceiling_tokens_per_second", digits=1),
    "first token, ms": _two("first_token_seconds_p50", "first_token_seconds_p99", 1000, 0),
    "gap, ms": _two("gap_seconds_p50", "gap_seconds_p99", 1000, 1),
    "acceptance": _one("acceptance_rate", digits=3),
    "length": _one("mean_acceptance_length"),
    "hit rate": _one("hit_rate", digits=3),
    "idle, %": _two("target_idle_share", "draft_idle_share", 100, 0),
    "Python, ms": _one("python_seconds_per_round", 1000, 2),
    "peak, MB": _one("peak_bytes", 1e-6, 0),
}
"""The table's columns; docs/benchmarks.md says what each of them means."""


def tables(rows: Sequence[Row]) -> Iterable[Table]:
    """A table for each prompt set and temperature."""
    from rich.table import Table

    for (prompts, temperature), group in groupby(rows, key=lambda row: (row.prompts, row.temperature)):
        found = list(group)
        table = Table(
            title=f"{prompts}, T {temperature:g}; ids {found[0].ids} in every mode and batch",
            title_justify="left",
        )
        for name in COLUMNS:
            left = name in ("mode", "cores")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for row, following in zip(found, [*found[1:], None], strict=True):
            ends = following is not None and following.batch != row.batch
            table.add_row(*(cell(row) for cell in COLUMNS.values()), end_section=ends)
        yield table


def as_json(results: Results, options: dict[str, Any]) -> dict[str, Any]:
    """Everything: what the numbers depend on, the rows, and each row's raw samples."""
    pairs = zip(results.rows, results.samples, strict=True)
    rows = [asdict(row) | {"samples": [_raw(sample) for sample in samples]} for row, samples in pairs]
    return {"surroundings": surroundings() | {"options": options}, "rows": rows}


def surroundings() -> dict[str, Any]:
    """What the numbers depend on, beside the options."""
    return {
        "version": __version__,
        "torch": _version_of("torch"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
    }


def _raw(sample: Sample) -> dict[str, Any]:
    result = sample.result
    return {
        "repetition": sample.repetition,
        "block": sample.block,
        "place": sample.place,
        "prompts": [answer.request_id for answer in result.answers],
        "num_tokens": [len(answer.token_ids) for answer in result.answers],
        "decoded_tokens": figures.decoded_tokens(result.answers),
        "decode_seconds": figures.decode_seconds(result.answers),
        "first_token_seconds": _rounded(figures.first_token_seconds(result.answers)),
        "gap_seconds": _rounded(figures.gap_seconds(result.answers)),
        "python_seconds": _rounded(figures.python_seconds(result.commands)),
        "draft_pass_seconds": _rounded(figures.draft_pass_seconds(result.commands)),
        "lane_busy_seconds": figures.busy_seconds(result.commands),
        "lane_span_seconds": figures.span_seconds(result.commands),
        "totals": asdict(RoundTotals.of(result.rounds)),
        "peak_bytes": result.peak_bytes,
    }


def _rounded(seconds: Iterable[float]) -> list[float]:
    """To microseconds: the files are long enough."""
    return [round(value, 6) for value in seconds]


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
            return next(names, platform.processor())
    except OSError:
        return platform.processor()

"""The rows as pictures (PNG). Needs matplotlib, which the extra `plots` installs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ssd_runtime.bench.rows import Row, Sample, tokens_per_second
from ssd_runtime.bench.run import Results
from ssd_runtime.errors import ConfigError
from ssd_runtime.types import Mode

Group = Sequence[tuple[Row, Sequence[Sample]]]
Draw = Callable[[Any, int, Row, Sequence[Sample]], None]


def check_plots(folder: Path) -> None:
    """Make `folder`; raises `ConfigError` where that, or drawing itself, is impossible."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("--plots: needs matplotlib; install it with: pip install 'ssd-runtime[plots]'")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--plots {folder}: cannot be made: {error.strerror}") from error


def draw_plots(results: Results, folder: Path) -> list[Path]:
    """Draw the rates and the waits into `folder`; gives the files."""
    pairs = list(zip(results.rows, results.samples, strict=True))
    groups = [list(group) for _, group in groupby(pairs, key=lambda p: (p[0].prompts, p[0].temperature))]
    return [
        _figure(groups, folder / "tokens_per_second.png", "tokens/s", _rate),
        _figure(groups, folder / "first_token.png", "first token, ms (P50 and P99)", _waits("first_token")),
        _figure(groups, folder / "gap.png", "gap, ms (P50 and P99)", _waits("gap")),
    ]


def _figure(groups: Sequence[Group], path: Path, label: str, draw: Draw) -> Path:
    """One picture: a panel for each prompt set and temperature, a bar for each mode and batch."""
    from matplotlib.figure import Figure  # without pyplot, which would look for a screen

    widest = max(len(group) for group in groups)
    size = (3 + 0.7 * widest, 3.2 * len(groups))
    figure = Figure(figsize=size, layout="constrained")
    for axes, group in zip(figure.subplots(len(groups), squeeze=False)[:, 0], groups, strict=True):
        for place, (row, samples) in enumerate(group):
            draw(axes, place, row, samples)
        names = [f"{row.mode}\nbatch {row.batch}\ncores {row.cores}" for row, _ in group]
        axes.set_xticks(range(len(group)), names, fontsize=7)
        axes.set_ylabel(label, fontsize=8)
        axes.set_title(f"{group[0][0].prompts}, T {group[0][0].temperature:g}", fontsize=9)
    figure.savefig(path, dpi=150)
    return path


def _rate(axes: Any, place: int, row: Row, samples: Sequence[Sample]) -> None:
    """The median as a bar, each repetition as a dot, the ceiling as a line."""
    axes.bar(place, row.tokens_per_second or 0, color=f"C{_colour(row)}", alpha=0.7)
    for repetition in sorted({sample.repetition for sample in samples}):
        rate = tokens_per_second([sample for sample in samples if sample.repetition == repetition])
        if rate is not None:
            axes.plot(place, rate, ".", color="black", markersize=4)
    if row.ceiling_tokens_per_second is not None:
        ends = (place - 0.4, place + 0.4)
        axes.plot(ends, [row.ceiling_tokens_per_second] * 2, "--", color="black", linewidth=1)


def _waits(name: str) -> Draw:
    """P50 as a bar, P99 as a line above it."""

    def draw(axes: Any, place: int, row: Row, samples: Sequence[Sample]) -> None:
        low, high = (getattr(row, f"{name}_seconds_{p}") for p in ("p50", "p99"))
        if low is not None and high is not None:
            axes.bar(place, 1000 * low, color=f"C{_colour(row)}", alpha=0.7)
            axes.plot([place, place], [1000 * low, 1000 * high], color="black", linewidth=1)

    return draw


def _colour(row: Row) -> int:
    return list(Mode).index(Mode(row.mode))

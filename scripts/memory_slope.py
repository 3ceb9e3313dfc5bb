"""Resident memory of this process over time, and how fast it grows."""

from __future__ import annotations

import gc
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import psutil
import torch
from scipy import stats
from torch import Tensor

from ssd_runtime.memory.kv import PagedKV

HOUR = 3600.0
LEAST_SAMPLES = 20
"""Of fewer than these a slope says little."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The process at a moment: seconds since the start, requests done, bytes, threads, open files."""

    at: float
    done: int
    resident: int
    threads: int
    files: int


@dataclass(frozen=True, slots=True)
class Slope:
    """Growth in percent of the mean per hour, and the ends of its 95 % interval."""

    percent: float
    low: float
    high: float
    samples: int


def sample(at: float, done: int) -> Sample:
    """The process now."""
    process = psutil.Process()
    return Sample(at, done, process.memory_info().rss, process.num_threads(), process.num_fds())


def touch_all() -> None:
    """Have every page be there that weights and KV were promised, so that their first use is no growth.

    Overwrites all KV: only for engines that have not served yet.
    """
    for one in gc.get_objects():
        if isinstance(one, PagedKV):
            one.data.zero_()
        elif isinstance(one, Tensor) and one.device.type == "cpu" and one.layout is torch.strided:
            one.count_nonzero()


def slope(samples: Sequence[Sample]) -> Slope | None:
    """The line through resident memory over time; None where there are too few samples for an interval."""
    if len(samples) < 4:
        return None
    at, resident = [one.at for one in samples], [one.resident for one in samples]
    fit = stats.linregress(at, resident)
    rest = [size - fit.intercept - fit.slope * when for when, size in zip(at, resident, strict=True)]
    squares = sum(one * one for one in rest)
    following = sum(one * other for one, other in itertools.pairwise(rest))
    lag = min(max(following / squares, 0.0), 0.99) if squares else 0.0
    reach = stats.t.ppf(0.975, len(samples) - 2) * fit.stderr * math.sqrt((1 + lag) / (1 - lag))
    per_hour = 100 * HOUR / fmean(resident)
    low, middle, high = (per_hour * (fit.slope + side * reach) for side in (-1, 0, 1))
    return Slope(middle, low, high, len(samples))

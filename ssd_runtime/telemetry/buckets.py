"""A histogram that costs its writer half a microsecond."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence


class Buckets:
    """Counts of values up to each of `bounds`, and of larger ones. One thread writes, any may read."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Bounds as Prometheus writes them, with how many values are not above."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, map(float, itertools.accumulate(list(self._counts))), strict=True))

"""Cache policies: how a row's branch budget is shared among the lengths that may be accepted."""

from __future__ import annotations

from collections.abc import Sequence


class Uniform:
    """The same number of bonus candidates after every accepted length; the rest goes to the last."""

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """`len(margins) + 1` counts that sum to `budget`."""
        return _rounded([1.0] * (len(margins) + 1), budget)


class Geometric:
    """Counts that shrink by a constant factor with the accepted length, as in Saguaro's theorem 12.

    With acceptance a per token and bonus misses that fall like F^-r in the fan-out F, the best
    counts are F_k ∝ w_k^(1/(1+r)), w_k = a^k (1 - a) for k < K and w_K = a^K. `lambda` gives the
    factor a^(1/(1+r)) itself.
    """

    def __init__(self, acceptance: float = 0.8, r: float = 1.0, **options: float) -> None:
        """Raises ValueError for an option that is unknown or out of range."""
        factor = options.pop("lambda", None)
        if options:
            raise ValueError(f"unknown option {min(options)!r}; allowed: acceptance, r, lambda")
        if not 0 < acceptance < 1 or not r > 0:
            raise ValueError(f"got acceptance {acceptance} and r {r}, expected 0 < acceptance < 1 and r > 0")
        self._power = 1 / (1 + r)
        self._factor = acceptance**self._power if factor is None else factor
        if not 0 < self._factor < 1:
            raise ValueError(f"got lambda {factor}, expected between 0 and 1")

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """`len(margins) + 1` counts that sum to `budget`."""
        rejected = (1 - self._factor ** (1 / self._power)) ** self._power
        weights = [rejected * self._factor**k for k in range(len(margins))]
        return _rounded([*weights, self._factor ** len(margins)], budget)


def _rounded(weights: Sequence[float], budget: int) -> list[int]:
    """Whole counts in proportion to `weights`, by largest remainder; the later one wins a tie."""
    total = sum(weights)
    shares = [budget * weight / total for weight in weights]
    counts = [int(share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda k: (shares[k] - counts[k], k), reverse=True)
    for k in by_remainder[: budget - sum(counts)]:
        counts[k] += 1
    return counts

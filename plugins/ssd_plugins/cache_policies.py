"""Cache policies: how a row's branch budget is shared among the lengths that may be accepted."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_runtime.api import fanout

ACCEPTANCE = 0.8
EXPONENT = 1.0


class Uniform:
    """The same number of bonus candidates after every accepted length."""

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """See `CachePolicy`; the margins are not looked at."""
        return fanout.uniform(budget, len(margins))


class Geometric:
    """Counts that follow the chance of each accepted length, one acceptance rate for all positions.

    Options: `acceptance`, the chance that a drafted token is accepted. With `lambda` the candidate of
    rank i is the bonus with probability (1 - lambda)·lambda^(i - 1), and the likeliest outcomes are
    taken; without it F candidates miss with probability F^-exponent, and the shares are those of
    Saguaro's theorem 12.
    """

    def __init__(self, **options: float) -> None:
        """Raises ValueError for an option that is unknown or out of range."""
        self._acceptance = _between(options.pop("acceptance", ACCEPTANCE), "acceptance", 1.0)
        decay = options.pop("lambda", None)
        self._decay = None if decay is None else _between(decay, "lambda", 1.0)
        self._exponent = _between(options.pop("exponent", EXPONENT), "exponent", 100.0)
        if options:
            raise ValueError(f"unknown option {min(options)!r}; allowed: acceptance, exponent, lambda")

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """See `CachePolicy`; the margins are not looked at."""
        weights = fanout.outcome_weights([self._acceptance] * len(margins))
        if self._decay is None:
            return fanout.power_law(budget, weights, self._exponent)
        return fanout.geometric(budget, weights, self._decay)


def _between(value: float, name: str, limit: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < limit:
        raise ValueError(f"option {name!r}: got {value!r}, expected a number above 0 and below {limit:g}")
    return float(value)

"""Cache policies: how a row's branch budget is shared among the lengths that may be accepted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ssd_runtime.api import fanout

ACCEPTANCE = 0.8
EXPONENT = 1.0
SLOPE = 2.0
BIAS = 0.5
DECAY = 0.1


class Uniform:
    """The same number of bonus candidates after every accepted length."""

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """See `CachePolicy`; the margins are not looked at."""
        return fanout.uniform(budget, len(margins))


class Adaptive:
    """The likeliest outcomes of this very proposal, judged by how sure the draft was at each position.

    A draft with margin m is taken to be accepted with probability 1 / (1 + exp(-(bias + slope·m))), and
    the candidate of rank i to be the bonus with probability (1 - lambda)·lambda^(i - 1), each whatever
    else happens. Options: `slope`, `bias`, `lambda`. On SmolLM2 an int8 self-draft is fitted best by 4,
    0.6 and 0.1, a draft with unit noise on its logits by 1.2, -0.8 and 0.4; the defaults lie between.
    """

    def __init__(self, **options: float) -> None:
        """Raises ValueError for an option that is unknown or out of range."""
        self._slope = _between(options.pop("slope", SLOPE), "slope", 0.0, 100.0)
        self._bias = _between(options.pop("bias", BIAS), "bias", -100.0, 100.0)
        self._decay = _between(options.pop("lambda", DECAY), "lambda", 0.0, 1.0)
        _refuse_the_rest(options, "bias, lambda, slope")

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """See `CachePolicy`."""
        weights = fanout.outcome_weights([self._acceptance(margin) for margin in margins])
        return fanout.geometric(budget, weights, self._decay)

    def _acceptance(self, margin: float) -> float:
        return 0.5 * (1.0 + math.tanh(0.5 * (self._bias + self._slope * margin)))


class Geometric:
    """Counts that follow the chance of each accepted length, one acceptance rate for all positions.

    Options: `acceptance`, the chance that a drafted token is accepted. With `lambda` the candidate of
    rank i is the bonus with probability (1 - lambda)·lambda^(i - 1), and the likeliest outcomes are
    taken; without it F candidates miss with probability F^-exponent, and the shares are those of
    Saguaro's theorem 12.
    """

    def __init__(self, **options: float) -> None:
        """Raises ValueError for an option that is unknown or out of range."""
        self._acceptance = _between(options.pop("acceptance", ACCEPTANCE), "acceptance", 0.0, 1.0)
        decay = options.pop("lambda", None)
        self._decay = None if decay is None else _between(decay, "lambda", 0.0, 1.0)
        self._exponent = _between(options.pop("exponent", EXPONENT), "exponent", 0.0, 100.0)
        _refuse_the_rest(options, "acceptance, exponent, lambda")

    def allot(self, margins: Sequence[float], budget: int) -> list[int]:
        """See `CachePolicy`; the margins are not looked at."""
        weights = fanout.outcome_weights([self._acceptance] * len(margins))
        if self._decay is None:
            return fanout.power_law(budget, weights, self._exponent)
        return fanout.geometric(budget, weights, self._decay)


def _between(value: float, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        expected = f"a number above {low:g} and below {high:g}"
        raise ValueError(f"option {name!r}: got {value!r}, expected {expected}")
    return float(value)


def _refuse_the_rest(options: Mapping[str, object], allowed: str) -> None:
    if options:
        raise ValueError(f"unknown option {min(options)!r}; allowed: {allowed}")

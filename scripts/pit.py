"""Are these tokens samples of these distributions? The randomised probability-integral transform.

With F the distribution function of p in a fixed order of tokens and V uniform, U = F(x-) + V·p(x) is
uniform for x drawn from p, whatever p is, and independent of what came before. So tokens of any number
of different distributions are judged together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ssd_runtime.stats import RoundRecord

KS_LIMIT = 2.0
"""sqrt(n) · sup |F_n(u) - u| of uniform values exceeds 2 once in 1500 times."""
LAG_LIMIT = 3.0
"""The lag-1 correlation of independent values exceeds 3/sqrt(n) once in 370 times."""
HIT, MISS, BONUS = "hit", "miss", "bonus"
ALL = "all"


class Uniforms(Protocol):
    """Where V comes from; a NumPy generator."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the test says of one class of tokens."""

    name: str
    count: int
    ks: float
    lag: float
    pairs: int

    @property
    def passes(self) -> bool:
        """Uniform and uncorrelated, as far as `count` values can tell."""
        return self.count > 0 and self.ks < KS_LIMIT and abs(self.lag) * self.pairs**0.5 < LAG_LIMIT

    def line(self) -> str:
        """The verdict as a line of a report."""
        bound = LAG_LIMIT / max(self.pairs, 1) ** 0.5
        return (
            f"{'ok  ' if self.passes else 'FAIL'} {self.name:5} n {self.count:6}  KS·√n {self.ks:.2f} "
            f"(< {KS_LIMIT:g})  lag-1 {self.lag:+.3f} (within {bound:.3f})"
        )


def transform(token: int, p: NDArray[np.float64], uniforms: Uniforms) -> float | None:
    """U of one token drawn from `p` `[V]`, in order of ids; None where p says it is impossible."""
    if p[token] <= 0:
        return None
    return float(p[:token].sum() + uniforms.random() * p[token])


def judge(name: str, answers: Iterable[Sequence[float]]) -> Verdict:
    """Judge the U of several answers, each in order; pairs never span two answers."""
    rows = [list(row) for row in answers]
    values = np.sort(np.array([value for row in rows for value in row]))
    products = [12 * (a - 0.5) * (b - 0.5) for row in rows for a, b in pairwise(row)]
    lag = float(np.mean(products)) if products else 0.0
    return Verdict(name, len(values), _ks(values), lag, len(products))


def _ks(values: NDArray[np.float64]) -> float:
    """sqrt(n) · sup |F_n(u) - u| of ascending values; 0 of none."""
    n = len(values)
    if not n:
        return 0.0
    above = np.arange(1, n + 1) / n - values
    below = values - np.arange(n) / n
    return float(max(above.max(), below.max()) * n**0.5)


def origins(rounds: Iterable[RoundRecord]) -> list[str]:
    """Where each token of one answer was drawn, given its rounds in order.

    hit: where a draft of the outcome cache was verified. miss: where another draft was, or none at all.
    bonus: behind a proposal that was accepted to its end.

    The place counts and not whether the draft was accepted: who picks the tokens that equal their
    draft picks by the token, and of a fair coin against a draft that says heads, all accepted are heads.
    A place is known before its token is drawn, so its tokens are as random as all others.
    """
    return [_origin(record, index) for record in rounds for index in range(record.emitted)]


def _origin(record: RoundRecord, index: int) -> str:
    if record.proposed == 0:
        return MISS
    if index == record.proposed:
        return BONUS
    return HIT if record.hit else MISS

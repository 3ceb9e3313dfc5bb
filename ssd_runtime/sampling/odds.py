"""A distribution as something to draw from and to compare: whole-numbered masses, in main memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ssd_kernels.arrays import native
from ssd_kernels.streams import WORD_BITS
from ssd_runtime.messages import Draw
from ssd_runtime.sampling.warp import is_usable, masses, scaled, support


@dataclass(frozen=True, slots=True, eq=False)
class Odds:
    """The tokens that can be drawn, ascending int64 `[C]`, and the mass of each, int64 `[C]` above 0.

    The probability of a token is its mass over the sum of all, at most 2^62: exactly what is drawn, with
    no rounding in between. Nobody changes the arrays.
    """

    token_ids: NDArray[np.int64]
    masses: NDArray[np.int64]

    def probability(self, token: int) -> float:
        """Of one token; 0 where it cannot be drawn."""
        place = int(self.token_ids.searchsorted(token))
        if place == len(self.token_ids) or self.token_ids[place] != token:
            return 0.0
        return int(self.masses[place]) / int(self.masses.sum())

    def draw(self, word: int) -> int:
        """The token of a uniform 64-bit `word`."""
        ends = self.masses.cumsum()
        mark = word * int(ends[-1]) >> WORD_BITS
        return int(self.token_ids[ends.searchsorted(mark, side="right")])

    def shortened(self, bits: int) -> Odds:
        """Without the last `bits` bits of every mass, and without the tokens that had no more."""
        return weighted(self.token_ids, self.masses >> bits)

    def lowered(self, token_ids: Sequence[int], factor: float) -> Odds:
        """With the masses of some tokens times `factor`, above 0 and at most 1; none becomes impossible."""
        lower = self.masses.copy()
        chosen = np.isin(self.token_ids, token_ids)
        lower[chosen] = np.maximum(1, np.floor(lower[chosen] * factor))
        return Odds(self.token_ids, lower)


def certain(token: int) -> Odds:
    """One token and no other."""
    return Odds(np.array([token], dtype=np.int64), np.ones(1, dtype=np.int64))


def weighted(token_ids: NDArray[np.int64], weights: NDArray[np.int64]) -> Odds:
    """The tokens whose weight is above 0, at least one of them."""
    possible = weights > 0
    return Odds(token_ids[possible], weights[possible])


def odds_of(logits: Tensor, draw: Draw) -> Odds | None:
    """What `draw` makes of one row `[V]` float32: temperature and truncation; None for an unusable row.

    Temperature 0 is certain of the largest logit, equal ones by lower id.
    """
    if not is_usable(logits):
        return None
    if draw.temperature == 0:
        return certain(int(native(logits).argmax()))
    kept = support(scaled(logits, draw.temperature), draw)
    return weighted(kept.token_ids.cpu().numpy(), masses(kept.scores).cpu().numpy())

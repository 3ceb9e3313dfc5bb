"""Temperature, top-k, top-p and min-p of one row: which tokens may be drawn, and with what scores.

The order is transformers' (`GenerationMixin._get_logits_processor`): temperature, top-k, top-p over what
top-k left, min-p over what top-p left. Probabilities are compared as integer masses, whose sum has no
order, so that neither the device nor a row's neighbours can move a token over a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ssd_kernels.arrays import as_tensor, clamp_below, divide, indices_where, native, to_int64
from ssd_kernels.elementary import exp2
from ssd_runtime.messages import Draw

MASS_BITS = 40
"""A token's mass is floor(2^40 · p / p_max); 2^22 tokens of full mass still fit 63 bits."""

SMALL = 512
"""Up to so many tokens, sorting all is cheaper than choosing among them."""

BANNED = -1e30
"""The score of what has no probability at all: finite, so that differences of scores are numbers."""

SMALLEST_TEMPERATURE = 1e-30
"""Lower positive temperatures mean the same, and float32 could not hold them."""

LOG2_E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Support:
    """The tokens that truncation leaves, in ascending order.

    token_ids: int64 `[C]`, C >= 1. scores: float32 `[C]`, (z - max z)/T, so the best is 0.
    """

    token_ids: Tensor
    scores: Tensor

    def at(self, indices: Tensor) -> Support:
        """The part at ascending int64 `indices`."""
        return Support(self.token_ids[indices], self.scores[indices])


def scaled(logits: Tensor, temperature: float) -> Tensor:
    """(z - max z)/T of one usable row: float32 `[V]` → float32 `[V]`, T > 0; in [-1e30, 0]."""
    values = native(logits)
    scores = divide(values - values.max(), max(temperature, SMALLEST_TEMPERATURE))
    return as_tensor(clamp_below(scores, BANNED))


def is_usable(logits: Tensor) -> bool:
    """Whether a row `[V]` has no NaN, no +inf and at least one finite value (-inf is a ban)."""
    return math.isfinite(native(logits).max())


def everything(scores: Tensor) -> Support:
    """All tokens of a row of `scores` `[V]`."""
    return Support(_all_ids(scores.numel(), scores.device), scores)


def support(scores: Tensor, draw: Draw) -> Support:
    """What top-k, top-p and min-p leave of `scores` `[V]`, as `scaled` makes them."""
    kept = everything(scores)
    if 0 < draw.top_k < scores.numel():
        kept = _top_k(kept, draw.top_k)
    if draw.top_p < 1.0:
        kept = _top_p(kept, draw.top_p)
    if draw.min_p > 0.0:
        kept = _min_p(kept, draw.min_p)
    return kept


def largest(values: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest of `values` `[C]`, best first, equal ones by lower index: int64."""
    if values.numel() <= SMALL:
        return _largest(values, count)
    head = next(head for head in _heads(values) if head.numel() >= count)
    return head[_largest(values[head], count)]


def masses(scores: Tensor) -> Tensor:
    """floor(2^40 · e^score), int64, for scores <= 0 of any shape; 0 below about -27.7."""
    mass = exp2(clamp_below(native(scores) * LOG2_E, -MASS_BITS - 2.0))
    mass *= 2.0**MASS_BITS
    return as_tensor(to_int64(mass))


def at_least(values: Tensor, floor: float) -> Tensor:
    """Ascending int64 indices of the `values` `[C]` that are at least `floor`."""
    return as_tensor(indices_where(native(values) >= floor))


def _largest(values: Tensor, count: int) -> Tensor:
    threshold = values.topk(count).values[-1].item()
    indices = at_least(values, threshold)
    return indices[values[indices].argsort(descending=True, stable=True)[:count]]


def _heads(values: Tensor) -> Iterator[Tensor]:
    """Ascending indices of all values that are at most 4, 8, 16, … below the largest; growing."""
    best = float(native(values).max())
    depth = 4.0
    while True:
        yield at_least(values, best - depth)
        depth *= 2.0


def _top_k(kept: Support, count: int) -> Support:
    return kept.at(largest(kept.scores, count).sort().values)


def _top_p(kept: Support, top_p: float) -> Support:
    """The shortest prefix, in order of (score, lower id), that holds `top_p` of the mass."""
    mass = masses(kept.scores)
    numerator, denominator = top_p.as_integer_ratio()
    wanted = max(1, -(-numerator * int(native(mass).sum()) // denominator))
    head = next(head for head in _heads(kept.scores) if int(mass[head].sum()) >= wanted)
    order = head[kept.scores[head].argsort(descending=True, stable=True)]
    length = int(torch.searchsorted(mass[order].cumsum(0), wanted)) + 1
    return kept.at(order[:length].sort().values)


def _min_p(kept: Support, min_p: float) -> Support:
    numerator, denominator = min_p.as_integer_ratio()
    threshold = -(-(numerator << MASS_BITS) // denominator)
    heavy = indices_where(native(masses(kept.scores)) >= threshold)
    return kept.at(as_tensor(heavy))


@cache
def _all_ids(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)

"""The ratio rule: a draft x of q is accepted with probability min(1, p(x)/q(x)), else max(p - q, 0) is drawn.

What is emitted is then distributed as p, whatever q (Leviathan and others, arXiv 2211.17192; Chen and
others, arXiv 2302.01318), as long as x was drawn from this very q, or is certain (then q is 1 there), and
every decision has a random number of its own: noise that is shared with the draft is exact under the
coupled rule only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ssd_kernels.streams import ACCEPT_STREAM, BONUS_STREAM, RESIDUAL_STREAM, unit
from ssd_runtime.messages import Verdict
from ssd_runtime.sampling.draw import UNUSABLE
from ssd_runtime.sampling.odds import Odds, certain, weighted
from ssd_runtime.sampling.warp import MASS_BITS

Words = Callable[[int, int], int]
"""`words(stream, position)`: a uniform 64-bit word, another one for each."""


def verify_by_ratio(
    drafts: Sequence[int],
    drawn_from: Sequence[Odds],
    targets: Iterable[Odds | None],
    first: int,
    words: Words,
) -> Verdict:
    """How many leading `drafts` are accepted, and the token after them.

    drawn_from: q of each draft; empty where each was certain. targets: p of each draft's position, from
    `first` on, and of the one behind them, read only as far as needed; None where there are no usable
    numbers, which gives the token UNUSABLE.
    """
    target = iter(targets)
    for accepted, draft in enumerate(drafts):
        position, p = first + accepted, next(target)
        if p is None:
            return Verdict(accepted, UNUSABLE)
        q = drawn_from[accepted] if drawn_from else certain(draft)
        if not accepts(unit(words(ACCEPT_STREAM, position)), p.probability(draft), q.probability(draft)):
            return Verdict(accepted, residual(p, q).draw(words(RESIDUAL_STREAM, position)))
    p, end = next(target), first + len(drafts)
    return Verdict(len(drafts), UNUSABLE if p is None else p.draw(words(BONUS_STREAM, end)))


def accepts(uniform: float, p: float, q: float) -> bool:
    """Whether a draft of probability `q` > 0 is accepted: strictly u < p/q, so that p = 0 never is."""
    return uniform * q < p


def residual(p: Odds, q: Odds) -> Odds:
    """max(p - q, 0), to scale; p itself where nothing is left, which is where nothing can be rejected."""
    places = q.token_ids.searchsorted(p.token_ids).clip(max=len(q.token_ids) - 1)
    taken = np.where(q.token_ids[places] == p.token_ids, q.masses[places], 0)
    excess = p.masses / p.masses.sum() - taken / q.masses.sum()
    most = excess.max()
    if most <= 0:
        return p
    return weighted(p.token_ids, (excess.clip(min=0) / most * 2.0**MASS_BITS).astype(np.int64))

"""Draws by chance: target and draft each with random numbers of their own, for the ratio rule.

Nothing here is shared between the two but the request's seed; the streams are those of docs/noise.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor

from ssd_kernels import streams
from ssd_runtime.messages import Draw, Verdict
from ssd_runtime.sampling.draw import UNUSABLE, DraftStep, draft_step
from ssd_runtime.sampling.odds import Odds, odds_of
from ssd_runtime.sampling.ranking import best
from ssd_runtime.sampling.ratio import verify_by_ratio
from ssd_runtime.sampling.warp import MASS_BITS, everything, is_usable, scaled

PROPOSAL_BITS = 24
"""Masses of q have so many bits, which leaves few tokens of a large vocabulary to be carried along."""


def draw_by_chance(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    """One token per row of float32 `logits` `[N, V]`: a sample of what its draw makes of it, or UNUSABLE."""
    return [_token(*row) for row in zip(logits, draws, positions, strict=True)]


def draft_by_chance(
    logits: Tensor, draw: Draw, position: int, count: int, *, lower: int = 0, factor: float = 1.0
) -> DraftStep:
    """What one row `[V]` of a draft yields: a sample of q with q itself, and the `count` likeliest tokens.

    q is what `draw` makes of the row, without the tokens that are less likely than 2^-24 of the best, and
    with the masses of the `lower` likeliest tokens times `factor`: "Saguaro sampling" (arXiv 2603.03251,
    definition 14). The less q has of a token, the likelier it is as the bonus after a rejection.
    Temperature 0 is as under the coupled rule.
    """
    if draw.temperature == 0 or not is_usable(logits):
        return draft_step(logits, draw, position, count)
    ranked = best(everything(scaled(logits, draw.temperature)), min(max(count, lower), logits.numel()))
    likely, scores = ranked.token_ids.tolist(), ranked.scores.tolist()
    q = odds_of(logits, draw)
    assert q is not None
    q = q.shortened(MASS_BITS - PROPOSAL_BITS)
    if factor != 1.0:
        q = q.lowered(likely[:lower], factor)
    token = q.draw(streams.proposal_word(draw.seed, draw.line, position))
    return DraftStep(token, tuple(likely[:count]), tuple(scores[:count]), q)


def verify_by_chance(
    drafts: Sequence[int], drawn_from: Sequence[Odds], logits: Iterable[Tensor], draw: Draw, first: int
) -> Verdict:
    """The ratio rule over rows `[1, V]` of the target's `logits`, the first at position `first`."""
    targets = (odds_of(row[0], draw) for row in logits)
    return verify_by_ratio(drafts, drawn_from, targets, first, partial(streams.position_word, draw.seed))


def _token(logits: Tensor, draw: Draw, position: int) -> int:
    p = odds_of(logits, draw)
    if p is None:
        return UNUSABLE
    return p.draw(streams.position_word(draw.seed, streams.BONUS_STREAM, position))

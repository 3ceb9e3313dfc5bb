"""Coupled draws: a row's token is the argmax of (z - max z)/T + noise over what truncation leaves.

Every row is computed by itself, so its result cannot depend on the rows beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_kernels.arrays import native
from ssd_runtime.messages import Draw
from ssd_runtime.sampling.ranking import Ranked, best, best_perturbed
from ssd_runtime.sampling.warp import Support, everything, is_usable, scaled, support

if TYPE_CHECKING:
    from ssd_runtime.sampling.odds import Odds

UNUSABLE = -1
"""The token of a row whose logits hold a NaN, a +inf, or nothing finite."""


@dataclass(frozen=True, slots=True)
class DraftStep:
    """What one row of a draft pass yields.

    token: the draw under the request's own truncation, or UNUSABLE.
    candidates: the likeliest tokens of the *target* here, best first, ranked without truncation.
    scores: the candidates' perturbed scores; the gap of the first two predicts acceptance.
    odds: what the token was drawn from, where the verification needs to know.
    """

    token: int
    candidates: tuple[int, ...]
    scores: tuple[float, ...]
    odds: Odds | None = None


def draw_tokens(logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
    """One token per row of float32 `logits` `[N, V]`, row i at absolute position positions[i]."""
    return [draw_token(*row) for row in zip(logits, draws, positions, strict=True)]


def draw_token(logits: Tensor, draw: Draw, position: int) -> int:
    """The token of one row `[V]`; temperature 0 is the argmax. UNUSABLE where the numbers are."""
    if not is_usable(logits):
        return UNUSABLE
    if draw.temperature == 0:
        return int(native(logits).argmax())
    return _drawn(support(scaled(logits, draw.temperature), draw), draw, position)


def candidates(
    logits: Tensor, draws: Sequence[Draw], positions: Sequence[int], count: int
) -> tuple[Tensor, Tensor]:
    """The `count` best tokens of each row by untruncated score + noise, best first.

    float32 `logits` `[N, V]`, 1 <= count <= V → ids int64 `[N, count]`, scores float32 `[N, count]`.
    Temperature 0 ranks by z - max z. An unusable row has ids UNUSABLE and scores -inf.
    """
    ids = torch.full((len(logits), count), UNUSABLE, device=logits.device)
    scores = torch.full((len(logits), count), -torch.inf, device=logits.device)
    for i, (row, draw, position) in enumerate(zip(logits, draws, positions, strict=True)):
        if is_usable(row):
            ranked = _ranked(_scores(row, draw), draw, position, count)
            ids[i], scores[i] = ranked.token_ids, ranked.scores
    return ids, scores


def draft_steps(
    logits: Tensor, draws: Sequence[Draw], positions: Sequence[int], count: int
) -> list[DraftStep]:
    """`draw_tokens` and `candidates` of each row of `logits` `[N, V]`, at the price of about one."""
    return [draft_step(*row, count) for row in zip(logits, draws, positions, strict=True)]


def draft_step(logits: Tensor, draw: Draw, position: int, count: int) -> DraftStep:
    """The drawn token and the `count` candidates of one row `[V]`, or all V where there are fewer."""
    if not is_usable(logits):
        return DraftStep(UNUSABLE, (), ())
    scores = _scores(logits, draw)
    ranked = _ranked(scores, draw, position, min(count, logits.numel()))
    ids = tuple(ranked.token_ids.tolist())
    token = ids[0] if draw.temperature == 0 else _coupled(ids, support(scores, draw), draw, position)
    return DraftStep(token, ids, tuple(ranked.scores.tolist()))


def _coupled(ids: tuple[int, ...], kept: Support, draw: Draw, position: int) -> int:
    """The draw within `kept`: the best candidate that truncation leaves, if it leaves one."""
    allowed = kept.token_ids
    for token_id in ids:
        place = int(torch.searchsorted(allowed, token_id))
        if place < allowed.numel() and int(allowed[place]) == token_id:
            return token_id
    return _drawn(kept, draw, position)


def _drawn(kept: Support, draw: Draw, position: int) -> int:
    if kept.token_ids.numel() == 1:
        return int(kept.token_ids)
    return int(best_perturbed(kept, draw.seed, position, 1).token_ids)


def _scores(logits: Tensor, draw: Draw) -> Tensor:
    return scaled(logits, draw.temperature or 1.0)


def _ranked(scores: Tensor, draw: Draw, position: int, count: int) -> Ranked:
    if draw.temperature == 0:
        return best(everything(scores), count)
    return best_perturbed(everything(scores), draw.seed, position, count)

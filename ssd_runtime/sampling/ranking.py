"""The tokens with the best scores plus noise, with the noise worked out only where it can still win."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_kernels.gumbel import (
    GUMBEL_MAX,
    WORDS_PER_CALL,
    gumbel,
    noise_of_words,
    token_words,
    vocabulary_words,
)
from ssd_runtime.sampling.warp import Support, largest

SMALL = 512
"""Up to so many tokens, working out every token's noise is cheaper than choosing among them."""

PAYS_BELOW = 8
"""Gathering a part of the tokens pays when less than one in so many is left."""

WORD_RANGE = 2.0**32


@dataclass(frozen=True, slots=True)
class Ranked:
    """Tokens best first: ids int64 `[count]`, and their perturbed scores float32 `[count]`."""

    token_ids: Tensor
    scores: Tensor


def best(kept: Support, count: int) -> Ranked:
    """The `count` best tokens without noise (temperature 0); equal ones by lower id."""
    best = largest(kept.scores, count)
    return Ranked(kept.token_ids[best], kept.scores[best])


def best_perturbed(kept: Support, seed: int, position: int, count: int) -> Ranked:
    """The `count` best tokens by score + noise, equal ones by lower id; count <= C."""
    if kept.token_ids.numel() > SMALL:
        kept, words = _contenders(kept, seed, position, count)
        noise = noise_of_words(words)
    else:
        noise = gumbel(seed, position, kept.token_ids)
    return best(Support(kept.token_ids, kept.scores + noise), count)


def _contenders(kept: Support, seed: int, position: int, count: int) -> tuple[Support, Tensor]:
    """A superset of the `count` best, and its words; decided by a bound, so it never changes the answer."""
    bound = _bound(kept, seed, position, count)
    possible = kept.scores >= bound - GUMBEL_MAX
    if int(possible.sum()) * PAYS_BELOW < possible.numel():
        kept = kept.where(possible)
    words = _words(kept.token_ids, seed, position)
    # noise >= x only where (word + ½)/2^32 <= e^-x
    contending = words.to(torch.float32) <= (kept.scores - bound).exp_().mul_(WORD_RANGE)
    return kept.where(contending), words[contending]


def _bound(kept: Support, seed: int, position: int, count: int) -> float:
    """A score that the `count` best surely reach: what `count` of the likeliest tokens do reach.

    Lowered by more than the rounding of the sums and of the exponential in `_contenders`.
    """
    likely = kept.scores.topk(max(count, SMALL // 4)).indices
    totals = kept.scores[likely] + gumbel(seed, position, kept.token_ids[likely])
    reached = totals.topk(count).values[-1].item()
    return reached - 0.01 - abs(reached) * 1e-6


def _words(token_ids: Tensor, seed: int, position: int) -> Tensor:
    span = int(token_ids[-1]) + 1
    if token_ids.numel() * WORDS_PER_CALL < span:
        return token_words(seed, position, token_ids)
    words = vocabulary_words(seed, position, span, token_ids.device)
    return words if token_ids.numel() == span else words[token_ids]

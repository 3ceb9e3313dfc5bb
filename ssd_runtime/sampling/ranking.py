"""The tokens with the best scores plus noise, with the noise worked out only where it can still win."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ssd_kernels.arrays import as_tensor, library_log, native, to_float32
from ssd_kernels.gumbel import WORDS_PER_CALL, gumbel, noise_of_words, token_words, vocabulary_words
from ssd_runtime.sampling.warp import SMALL, Support, at_least, largest

SLACK = 3.2
"""More than log(33 ln 2) = 3.13: by so much at most does -log v overstate the noise -log(-log(1 - v))."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """Tokens best first: ids int64 `[count]`, and their perturbed scores float32 `[count]`."""

    token_ids: Tensor
    scores: Tensor


def best(kept: Support, count: int) -> Ranked:
    """The `count` best tokens without noise (temperature 0); equal ones by lower id; count <= C."""
    order = largest(kept.scores, count)
    return Ranked(kept.token_ids[order], kept.scores[order])


def best_perturbed(kept: Support, seed: int, position: int, count: int) -> Ranked:
    """The `count` best tokens by score + noise at `position`, equal ones by lower id; count <= C."""
    if kept.token_ids.numel() <= SMALL:
        noise = gumbel(seed, position, kept.token_ids)
    else:
        words = _words(kept.token_ids, seed, position)
        contenders = _contenders(kept.scores, words, count)
        kept, noise = kept.at(contenders), noise_of_words(words[contenders])
    return best(Support(kept.token_ids, kept.scores + noise), count)


def _contenders(scores: Tensor, words: Tensor, count: int) -> Tensor:
    """Ascending indices of a superset of the `count` best, for one logarithm a token instead of two.

    score - log v is never below the perturbed score and never more than SLACK above it. So the `count`
    best by this bound reach its count-th value less SLACK, and whoever is bounded lower is out. The slack
    exceeds 3.13 by more than the last bits of the logarithm, which may differ between devices.
    """
    bounds = as_tensor(native(scores) - library_log(to_float32(native(words)) + 0.5))
    last = bounds[largest(bounds, count)[-1]].item()
    return at_least(bounds, last - SLACK - abs(last) * 1e-6)


def _words(token_ids: Tensor, seed: int, position: int) -> Tensor:
    """The words of ascending `token_ids`: one generator call a token, or one for four of a dense set."""
    span = int(token_ids[-1]) + 1
    if token_ids.numel() * WORDS_PER_CALL < span:
        return token_words(seed, position, token_ids)
    words = vocabulary_words(seed, position, span, token_ids.device)
    return words if token_ids.numel() == span else words[token_ids]

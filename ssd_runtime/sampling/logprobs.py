"""Log probabilities of tokens: of the model's own p, or of the distribution that is drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.arrays import as_tensor, library_exp, native
from ssd_runtime.messages import Draw
from ssd_runtime.sampling.warp import Support, everything, largest, scaled, support
from ssd_runtime.types import TokenLogprob


def own(logits: Tensor) -> Support:
    """log p of every token of one usable row `[V]`: the softmax of the logits as they stand."""
    return _normalized(everything(logits))


def drawn_from(logits: Tensor, draw: Draw) -> Support:
    """log p of the tokens that may be drawn of one usable row `[V]` after its rules: warped, truncated.

    Temperature 0 has no distribution: it is taken at temperature 1, without truncation.
    """
    if draw.temperature == 0:
        return own(logits)
    return _normalized(support(scaled(logits, draw.temperature), draw))


def entry(kept: Support, token: int, count: int) -> TokenLogprob:
    """`token` with its log p (-inf where it is not in `kept`) and the `count` likeliest beside it."""
    if not count:
        return TokenLogprob(token, _logprob(kept, token))
    order = largest(kept.scores, min(count, kept.scores.numel()))
    ids, scores = kept.token_ids[order].tolist(), kept.scores[order].tolist()
    top = tuple(TokenLogprob(*pair) for pair in zip(ids, scores, strict=True) if pair[1] > -math.inf)
    return TokenLogprob(token, _logprob(kept, token), top)


def prompt_entries(logits: Tensor, token_ids: Sequence[int], count: int) -> tuple[TokenLogprob, ...]:
    """Each of `token_ids` `[N]` under its own row of `logits` `[N, V]`, with `count` alternatives."""
    return tuple(entry(own(row), token, count) for row, token in zip(logits, token_ids, strict=True))


def _logprob(kept: Support, token: int) -> float:
    place = int(torch.searchsorted(kept.token_ids, token))
    if place < kept.token_ids.numel() and int(kept.token_ids[place]) == token:
        return float(kept.scores[place])
    return -math.inf


def _normalized(kept: Support) -> Support:
    """The scores less the logarithm of the sum of their exponentials, summed in float64."""
    scores = native(kept.scores)
    scores = scores - scores.max()
    exponentials = library_exp(scores)
    kind = torch.float64 if isinstance(exponentials, Tensor) else "float64"
    return Support(kept.token_ids, as_tensor(scores - math.log(float(exponentials.sum(dtype=kind)))))

"""Gumbel noise as a pure function of (request seed, absolute position, token id): docs/noise.md.

The same noise is what lets the draft predict what the target will sample, so nothing else may enter:
not the row's place in a batch, not the device, not the other tokens asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.elementary import log, log_of_parts, split
from ssd_kernels.philox import MASK32, philox4x32

TOKEN_STREAM = 0
"""Counter word 3 of token noise; other uses of a request's seed take other streams."""

WORDS_PER_CALL = 4
SMALL_V_LIMIT = 1257966796
"""floor((1 - √½)·2^32): below it log(1 - v) needs no reduction, and v keeps its small-value precision."""

GUMBEL_MIN = -3.1300089
GUMBEL_MAX = 22.873857
"""The noise of words 2^32 - 1 and 0, rounded outwards: -log(33 ln 2) and 33 ln 2."""


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Noise of `token_ids` `[C]` int64 at one position: float32 `[C]`."""
    return noise_of_words(token_words(seed, position, token_ids))


def gumbel_rows(seeds: Sequence[int], positions: Sequence[int], token_ids: Tensor) -> Tensor:
    """Noise of `token_ids` `[N, C]` int64, row i at (seeds[i], positions[i]): float32 `[N, C]`."""
    return noise_of_words(_words(seeds, positions, token_ids))


def token_words(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """The random 32-bit words behind the noise of `token_ids` `[C]`: int64 `[C]`."""
    return _words([seed], [position], token_ids.unsqueeze(0))[0]


def vocabulary_words(seed: int, position: int, vocab_size: int, device: torch.device) -> Tensor:
    """`token_words` of ids 0 … vocab_size - 1, four words to a generator call: int64 `[vocab_size]`."""
    calls = torch.arange(-(-vocab_size // WORDS_PER_CALL), device=device)
    return torch.stack(_generate([seed], [position], calls), dim=-1).view(-1)[:vocab_size]


def noise_of_words(words: Tensor) -> Tensor:
    """-log(-log(1 - v)) with v = (word + ½)/2^32, for int64 words in [0, 2^32) of any shape: float32."""
    small = words < SMALL_V_LIMIT
    fraction, exponent = split(_unit(MASK32 - words))
    fraction = torch.where(small, -_unit(words), fraction)
    exponent = torch.where(small, 0.0, exponent)
    return -log(-log_of_parts(fraction, exponent))


def _unit(words: Tensor) -> Tensor:
    return (words.to(torch.float32) + 0.5) * 2.0**-32


def _words(seeds: Sequence[int], positions: Sequence[int], token_ids: Tensor) -> Tensor:
    calls = token_ids // WORDS_PER_CALL
    output = torch.stack(_generate(seeds, positions, calls), dim=-1)
    return output.gather(-1, (token_ids % WORDS_PER_CALL).unsqueeze(-1)).squeeze(-1)


def _generate(
    seeds: Sequence[int], positions: Sequence[int], calls: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    key = _halves(seeds, calls)
    low, high = _halves(positions, calls)
    stream = torch.tensor(TOKEN_STREAM, device=calls.device)
    return philox4x32((calls, low, high, stream), key)


def _halves(values: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
    """The low and high 32 bits of 64-bit integers, as columns `[N, 1]`."""
    low = torch.tensor([[value & MASK32] for value in values], device=like.device)
    high = torch.tensor([[value >> 32 & MASK32] for value in values], device=like.device)
    return low, high

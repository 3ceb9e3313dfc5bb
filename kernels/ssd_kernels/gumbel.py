"""Gumbel noise as a pure function of (request seed, absolute position, token id): docs/noise.md.

The same noise is what lets the draft predict what the target will sample, so nothing else may enter:
not the row's place in a batch, not the device, not the other tokens asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_kernels.arrays import Array, as_tensor, integers, native, to_float32, where
from ssd_kernels.elementary import log, log_of_parts, split
from ssd_kernels.philox import MASK32, philox4x32

TOKEN_STREAM = 0
"""Counter word 3 of token noise; other uses of a request's seed take other streams."""

WORDS_PER_CALL = 4
SMALL_V_LIMIT = 1257966796
"""floor((1 - √½)·2^32): below it log(1 - v) needs no reduction, and v keeps its small-value precision."""

GUMBEL_MIN = -3.1299947
GUMBEL_MAX = 22.873858
"""The noise of words 2^32 - 1 and 0, rounded outwards: -log(33 ln 2) and 33 ln 2."""


def gumbel(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """Noise of `token_ids` `[C]` int64 at one position: float32 `[C]`."""
    return noise_of_words(token_words(seed, position, token_ids))


def gumbel_rows(seeds: Sequence[int], positions: Sequence[int], token_ids: Tensor) -> Tensor:
    """Noise of `token_ids` `[N, C]` int64, row i at (seeds[i], positions[i]): float32 `[N, C]`."""
    rows = zip(seeds, positions, token_ids, strict=True)
    return torch.stack([gumbel(seed, position, row) for seed, position, row in rows])


def token_words(seed: int, position: int, token_ids: Tensor) -> Tensor:
    """The random 32-bit words behind the noise of `token_ids` `[C]`: int64 `[C]`."""
    calls = _calls(seed, position, native(token_ids // WORDS_PER_CALL))
    return calls.gather(-1, (token_ids % WORDS_PER_CALL).unsqueeze(-1)).squeeze(-1)


def vocabulary_words(seed: int, position: int, vocab_size: int, device: torch.device) -> Tensor:
    """`token_words` of ids 0 … vocab_size - 1, four words to a generator call: int64 `[vocab_size]`."""
    calls = native(torch.arange(-(-vocab_size // WORDS_PER_CALL), device=device))
    return _calls(seed, position, calls).view(-1)[:vocab_size]


def noise_of_words(words: Tensor) -> Tensor:
    """-log(-log(1 - v)) with v = (word + ½)/2^32, for int64 words in [0, 2^32) of any shape: float32."""
    return as_tensor(array_noise(native(words)))


def array_noise(words: Array) -> Array:
    """The formula of `noise_of_words`, on the device and in the library of `words`."""
    small = words < SMALL_V_LIMIT
    # 1 - v from the complement of the word: subtracting from 1 would lose the digits of v near 1
    fraction, exponent = split(_unit(MASK32 - words))
    fraction = where(small, -_unit(words), fraction)
    exponent *= to_float32(~small)
    return -log(-log_of_parts(fraction, exponent))


def _unit(words: Array) -> Array:
    unit = to_float32(words)
    unit += 0.5
    unit *= 2.0**-32
    return unit


def _calls(seed: int, position: int, calls: Array) -> Tensor:
    """The four words of each generator call of `calls` `[C]`: int64 `[C, 4]`."""
    low, high, stream = (integers([word], calls) for word in (*_halves(position), TOKEN_STREAM))
    output = torch.empty((len(calls), WORDS_PER_CALL), dtype=torch.int64, device=as_tensor(calls).device)
    for i, words in enumerate(philox4x32((calls, low, high, stream), _halves(seed))):
        output[:, i] = as_tensor(words)
    return output


def _halves(value: int) -> tuple[int, int]:
    """The low and the high word of a 64-bit integer."""
    return value & MASK32, value >> 32 & MASK32

"""Uniform words for single decisions: the streams of a request's seed beside token noise (docs/noise.md)."""

from __future__ import annotations

from ssd_kernels.philox import MASK32, philox4x32_reference

PROPOSAL_STREAM = 1
"""Which token a draft proposes."""
ACCEPT_STREAM = 2
"""Whether a proposed token is accepted."""
RESIDUAL_STREAM = 3
"""The token in a rejected one's place."""
BONUS_STREAM = 4
"""The token behind a proposal that was accepted whole, or where there was none."""

WORD_BITS = 64


def position_word(seed: int, stream: int, position: int) -> int:
    """The 64-bit word of one decision about one position."""
    return _word(seed, (0, position & MASK32, position >> 32 & MASK32, stream))


def proposal_word(seed: int, line: tuple[int, int], position: int) -> int:
    """The 64-bit word of the token that the draft's line `line` proposes at `position`.

    line: how many tokens were settled when it began, and the position of its first token. No two lines
    of a request that could follow the same text have both in common.
    """
    settled, first = line
    return _word(seed, (first & MASK32, position & MASK32, settled & MASK32, PROPOSAL_STREAM))


def unit(word: int) -> float:
    """The first 53 bits of a word as a number in [0, 1)."""
    return (word >> WORD_BITS - 53) * 2.0**-53


def _word(seed: int, counter: tuple[int, int, int, int]) -> int:
    low, high, _, _ = philox4x32_reference(counter, (seed & MASK32, seed >> 32 & MASK32))
    return high << 32 | low

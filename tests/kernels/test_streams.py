"""Uniform words of single decisions: the same everywhere, and never the same twice."""

from __future__ import annotations

import pytest
import torch

from ssd_kernels.gumbel import TOKEN_STREAM, token_words
from ssd_kernels.streams import (
    ACCEPT_STREAM,
    BONUS_STREAM,
    PROPOSAL_STREAM,
    RESIDUAL_STREAM,
    position_word,
    proposal_word,
    unit,
)

SEED = 0x0123456789ABCDEF
STREAMS = (ACCEPT_STREAM, RESIDUAL_STREAM, BONUS_STREAM)


@pytest.mark.parametrize(
    ("stream", "word"), [(2, 0xA6B31B1D81DBFAD4), (3, 0xB38AF80F760AF2A1), (4, 0x6B878B522E659F92)]
)
def test_words_are_those_of_the_specification(stream: int, word: int) -> None:
    """The vectors of docs/noise.md."""
    assert position_word(SEED, stream, 1000) == word


def test_proposal_word_is_that_of_the_specification() -> None:
    """Line: 990 tokens settled, first position 995."""
    assert proposal_word(SEED, (990, 995), 1000) == 0xFDECA1DA002F8140


def test_streams_positions_and_lines_are_told_apart() -> None:
    """Every word of a small cube is another one, and none is that of the shared noise."""
    words = [position_word(SEED, stream, at) for stream in STREAMS for at in range(50)]
    words += [proposal_word(SEED, (a, b), at) for a in range(5) for b in range(a, 9) for at in range(b, 12)]
    assert len(set(words)) == len(words)
    shared = {int(word) for at in range(50) for word in token_words(SEED, at, torch.arange(8))}
    assert not shared & {word & 0xFFFFFFFF for word in words}
    assert len({TOKEN_STREAM, PROPOSAL_STREAM, *STREAMS}) == 5


def test_a_unit_is_at_least_0_and_below_1() -> None:
    """Strictly below: a draft with p = q is always accepted."""
    assert (unit(0), unit(1 << 63), unit(2**64 - 1)) == (0.0, 0.5, 1 - 2.0**-53)

"""Distributions in whole numbers: what is drawn is what is compared."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.odds import Odds, certain, odds_of, weighted
from ssd_runtime.sampling.warp import MASS_BITS


def odds(*masses: int, first: int = 10) -> Odds:
    """Tokens from `first` on with these masses; a mass of 0 leaves its token out."""
    return weighted(np.arange(first, first + len(masses)), np.array(masses))


def drawn(one: Odds, grid: int) -> Counter[int]:
    """How often each token comes of words at the left ends of `grid` equal parts."""
    return Counter(one.draw(-(-(k << 64) // grid)) for k in range(grid))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any))
def test_words_in_equal_parts_are_drawn_in_proportion_to_the_masses(masses: list[int]) -> None:
    """To the last word: no part of a token's share belongs to its neighbour."""
    one, total = odds(*masses), sum(masses)
    assert drawn(one, total) == {10 + i: mass for i, mass in enumerate(masses) if mass}
    assert sum(one.probability(token) for token in range(30)) == pytest.approx(1)


def test_the_last_word_draws_the_last_token() -> None:
    """2^64 - 1, however large the masses."""
    assert odds(1, 3).draw(2**64 - 1) == 11
    assert odds(*[2**40] * 2**10).draw(2**64 - 1) == 10 + 2**10 - 1


@pytest.mark.parametrize("token", [-1, 0, 9, 11, 13, 10**6])
def test_what_cannot_be_drawn_has_probability_0(token: int) -> None:
    """Below, between and above the tokens there are."""
    assert odds(1, 0, 1).probability(token) == 0
    assert certain(12).probability(token) == 0


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.25, 1e-9])
def test_lowered_tokens_have_less_and_stay_possible(factor: float) -> None:
    """Saguaro's σ: C times the mass of some tokens, the others' share grows."""
    before = odds(8, 8, 16)
    after = before.lowered([10, 12, 77], factor)
    expected = [max(1, int(8 * factor)), 8, max(1, int(16 * factor))]
    assert after.masses.tolist() == expected
    assert before.masses.tolist() == [8, 8, 16]


def test_short_masses_lose_the_tokens_that_were_hardly_possible() -> None:
    """Only the largest has more than two bits."""
    assert odds(3, 4, 9).shortened(2).token_ids.tolist() == [11, 12]
    assert odds(3, 4, 9).shortened(2).masses.tolist() == [1, 2]


def test_odds_are_the_softmax_of_what_truncation_leaves() -> None:
    """Within 2^-20, beside a softmax written out here."""
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0, -torch.inf])
    for draw in (Draw(0, 1.0), Draw(0, 0.5), Draw(0, 1.0, top_k=2), Draw(0, 1.0, top_p=0.9)):
        one = odds_of(logits, draw)
        assert one is not None
        p = (logits.double() / draw.temperature).softmax(0)
        kept = torch.zeros(5, dtype=torch.float64)
        kept[torch.from_numpy(one.token_ids)] = p[torch.from_numpy(one.token_ids)]
        kept /= kept.sum()
        assert [one.probability(token) for token in range(5)] == pytest.approx(kept.tolist(), abs=2.0**-20)
    assert odds_of(logits, Draw(0, 1.0, top_k=2)).token_ids.tolist() == [2, 3]  # type: ignore[union-attr]


def test_temperature_0_is_certain_of_the_first_of_the_largest() -> None:
    """Ties go to the lower id; truncation is not looked at."""
    one = odds_of(torch.tensor([0.0, 2.0, 2.0]), Draw(0, 0.0, top_p=0.1))
    assert one is not None
    assert one.token_ids.tolist() == [1]
    assert one.probability(1) == 1


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_row_without_usable_numbers_has_no_odds(bad: float) -> None:
    """NaN, +inf, or nothing finite at all."""
    assert odds_of(torch.tensor([0.0, bad, 1.0]), Draw(0, 1.0)) is None
    assert odds_of(torch.full((3,), -torch.inf), Draw(0, 0.0)) is None


def test_banned_tokens_cannot_be_drawn() -> None:
    """Not by any word, at the highest temperature."""
    one = odds_of(torch.tensor([-torch.inf, 0.0, 0.0]), Draw(0, 2.0))
    assert one is not None
    assert one.token_ids.tolist() == [1, 2]
    assert one.masses.tolist() == [1 << MASS_BITS] * 2
    assert Fraction(one.probability(1)) == Fraction(1, 2)

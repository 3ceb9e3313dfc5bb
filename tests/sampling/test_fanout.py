"""The branch budget is spent whole, and where the theory says."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.sampling.fanout import (
    coverage,
    geometric,
    outcome_weights,
    power_law,
    power_law_shares,
    uniform,
)

budgets = st.integers(0, 64)
acceptances = st.lists(st.floats(0.01, 0.99), max_size=12)


@given(budgets, acceptances, st.floats(0.1, 3.0), st.floats(0.05, 0.95))
def test_every_policy_spends_exactly_the_budget(
    budget: int, chances: list[float], exponent: float, decay: float
) -> None:
    """K + 1 counts, none negative, whose sum is the budget."""
    weights = outcome_weights(chances)
    for counts in (
        uniform(budget, len(chances)),
        power_law(budget, weights, exponent),
        geometric(budget, weights, decay),
    ):
        assert len(counts) == len(chances) + 1
        assert min(counts) >= 0
        assert sum(counts) == budget


@given(acceptances)
def test_outcome_weights_are_a_distribution(chances: list[float]) -> None:
    """Exactly one outcome happens."""
    assert sum(outcome_weights(chances)) == pytest.approx(1.0)


def test_uniform_prefers_late_positions_for_the_rest() -> None:
    """Seven branches over three positions."""
    assert uniform(7, 2) == [2, 2, 3]
    assert uniform(2, 3) == [0, 0, 1, 1]
    assert uniform(5, 0) == [5]


@pytest.mark.parametrize(
    ("acceptance", "shares", "miss"),
    [
        (0.7, [4.9, 4.1, 3.4, 2.9, 2.4, 2.0, 1.7, 2.6], 0.299),
        (0.8, [3.9, 3.5, 3.1, 2.8, 2.5, 2.2, 2.0, 4.0], 0.316),
        (0.9, [2.9, 2.8, 2.6, 2.5, 2.4, 2.3, 2.1, 6.4], 0.280),
    ],
)
def test_theorem_12_gives_the_published_table(acceptance: float, shares: list[float], miss: float) -> None:
    """K = 7, B = 24, r = 1: the fan-outs, and the probability of a miss that they lead to."""
    weights = outcome_weights([acceptance] * 7)
    computed = power_law_shares(24, weights, 1.0)
    assert computed == pytest.approx(shares, abs=0.06)
    assert sum(w / f for w, f in zip(weights, computed, strict=True)) == pytest.approx(miss, abs=6e-4)


def test_rounding_keeps_each_share_within_one() -> None:
    """Largest remainders: nobody loses or gains a whole candidate."""
    weights = outcome_weights([0.8] * 7)
    shares = power_law_shares(24, weights, 1.0)
    for share, count in zip(shares, power_law(24, weights, 1.0), strict=True):
        assert abs(share - count) < 1


def test_what_is_left_goes_to_the_largest_remainders() -> None:
    """Shares of 0.2, 0.9 and 1.9, of three."""
    assert power_law(3, [0.04, 0.81, 3.61], 1.0) == [0, 1, 2]


def test_certain_acceptance_puts_everything_on_the_last_position() -> None:
    """Impossible outcomes get no branch."""
    assert power_law(6, outcome_weights([1.0, 1.0]), 1.0) == [0, 0, 6]
    assert power_law(6, outcome_weights([0.0, 0.5]), 1.0) == [6, 0, 0]


@given(st.integers(0, 8), st.lists(st.floats(0.05, 0.95), max_size=2), st.floats(0.1, 0.9))
def test_geometric_is_the_best_of_all_allocations(budget: int, chances: list[float], decay: float) -> None:
    """No other way to spend the budget has a higher hit probability."""
    weights = outcome_weights(chances)

    def hits(counts: tuple[int, ...]) -> float:
        return sum(w * coverage(decay, n) for w, n in zip(weights, counts, strict=True))

    every = (c for c in product(range(budget + 1), repeat=len(weights)) if sum(c) == budget)
    assert hits(tuple(geometric(budget, weights, decay))) == pytest.approx(max(map(hits, every)))


def test_three_candidates_cover_what_the_formula_says() -> None:
    """λ = 0.8 covers 48.8 % with three; 94.4 % need λ ≈ 0.383."""
    assert coverage(0.8, 3) == pytest.approx(0.488)
    assert coverage(0.383, 3) == pytest.approx(0.944, abs=1e-3)

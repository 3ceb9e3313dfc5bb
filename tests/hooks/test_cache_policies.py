"""The built-in cache policies share the whole budget, in the proportions that they promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_plugins.cache_policies import Geometric, Uniform


@given(k=st.integers(0, 64), budget=st.integers(0, 256), acceptance=st.floats(0.01, 0.99))
def test_the_budget_is_spent_exactly(k: int, budget: int, acceptance: float) -> None:
    """K + 1 counts, none negative, whose sum is the budget."""
    for policy in (Uniform(), Geometric(acceptance=acceptance)):
        counts = policy.allot([0.0] * k, budget)
        assert len(counts) == k + 1
        assert min(counts) >= 0
        assert sum(counts) == budget


def test_uniform_gives_the_rest_to_the_longest() -> None:
    """8 outcomes over 3 lengths."""
    assert Uniform().allot([0.0, 0.0], 8) == [2, 3, 3]


def test_geometric_follows_the_theorem() -> None:
    """a = 1/4 and r = 1 give √w = (√.75, √.75/2, √.75/4, 1/8): of 100, 47, 24, 12 … in proportion."""
    weights = [0.75**0.5, 0.75**0.5 / 2, 0.75**0.5 / 4, 1 / 8]
    counts = Geometric(acceptance=0.25, r=1.0).allot([0.0] * 3, 1000)
    expected = [1000 * weight / sum(weights) for weight in weights]
    assert all(abs(count - share) <= 1 for count, share in zip(counts, expected, strict=True))


def test_lambda_is_the_factor_between_lengths() -> None:
    """lambda = 0.5 halves the count with every accepted token but the last."""
    counts = Geometric(**{"lambda": 0.5}).allot([0.0] * 3, 10_000)
    assert counts[0] == pytest.approx(2 * counts[1], abs=2)
    assert counts[1] == pytest.approx(2 * counts[2], abs=2)


@pytest.mark.parametrize("options", [{"lambda": 1.5}, {"acceptance": 0.0}, {"r": -1.0}, {"lamda": 0.5}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    """A wrong or misspelt option is never ignored."""
    with pytest.raises(ValueError, match=r"expected|unknown option"):
        Geometric(**options)

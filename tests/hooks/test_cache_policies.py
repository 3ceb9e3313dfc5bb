"""The built-in cache policies share the whole budget, in the proportions that they promise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_plugins.cache_policies import Geometric, Uniform
from ssd_runtime.errors import ConfigError
from ssd_runtime.hooks.manager import PluginManager


@given(k=st.integers(0, 64), budget=st.integers(0, 256), acceptance=st.floats(0.01, 0.99))
def test_every_policy_spends_the_whole_budget(k: int, budget: int, acceptance: float) -> None:
    """K + 1 counts, none negative, whose sum is the budget."""
    for policy in (
        Uniform(),
        Geometric(acceptance=acceptance),
        Geometric(acceptance=acceptance, **{"lambda": 0.5}),
    ):
        counts = policy.allot([0.0] * k, budget)
        assert len(counts) == k + 1
        assert min(counts) >= 0
        assert sum(counts) == budget


def test_geometric_follows_theorem_12() -> None:
    """a = 1/4 and r = 1: F_k ∝ √w_k with w = (3/4, 3/16, 3/64, 1/64), so 4 : 2 : 1 : 1/√3 of 1000."""
    parts = [4.0, 2.0, 1.0, 3**-0.5]
    counts = Geometric(acceptance=0.25, exponent=1.0).allot([0.0] * 3, 1000)
    assert counts == pytest.approx([1000 * part / sum(parts) for part in parts], abs=1)


def test_lambda_takes_the_likeliest_outcomes() -> None:
    """a = 1/2, λ = 1/4: outcome (j, i) has w_j·(1/4)^(i-1), w = (1/2, 1/4, 1/4): 3 go one to each."""
    assert Geometric(acceptance=0.5, **{"lambda": 0.25}).allot([0.0] * 2, 3) == [1, 1, 1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("geometric", {"lambda": 1.5}),
        ("geometric", {"lambda": "wide"}),
        ("geometric", {"acceptance": 0}),
        ("geometric", {"exponent": True}),
        ("geometric", {"lamda": 0.5}),
        ("uniform", {"lambda": 0.5}),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any]) -> None:
    """A wrong or misspelt option is a ConfigError that names the policy, never ignored."""
    manager = PluginManager()
    manager.load()
    with pytest.raises(ConfigError, match=f"cache policy '{name}' cannot be made: "):
        manager.registries.cache_policies.get(name)(**options)

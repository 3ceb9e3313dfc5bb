"""The built-in cache policies share the whole budget, in the proportions that they promise."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ssd_plugins.cache_policies import Adaptive, Geometric, Uniform
from ssd_runtime.errors import ConfigError
from ssd_runtime.hooks.manager import PluginManager


@given(k=st.integers(0, 64), budget=st.integers(0, 256), acceptance=st.floats(0.01, 0.99))
def test_every_policy_spends_the_whole_budget(k: int, budget: int, acceptance: float) -> None:
    """K + 1 counts, none negative, whose sum is the budget."""
    for policy in (
        Adaptive(),
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


margins = st.lists(st.floats(0, 30), max_size=12)
budgets = st.integers(0, 64)


@given(
    st.lists(st.floats(0, 8), max_size=5),
    st.integers(0, 12),
    st.floats(0.2, 3),
    st.floats(-2, 2),
    st.floats(0.1, 0.9),
)
def test_adaptive_prepares_the_likeliest_outcomes(
    sure: list[float], budget: int, slope: float, bias: float, decay: float
) -> None:
    """Its outcomes (j, rank) are together as likely as the `budget` best of ∏â_i · (1 - â_j) · r̂(rank)."""
    accepted = [1 / (1 + math.exp(-(bias + slope * margin))) for margin in sure]
    ends = [math.prod(accepted[:j]) * (1 - a) for j, a in enumerate(accepted)] + [math.prod(accepted)]
    rank = [(1 - decay) * decay**i for i in range(budget)]
    best = sorted((end * r for end, r in product(ends, rank)), reverse=True)[:budget]
    counts = Adaptive(slope=slope, bias=bias, **{"lambda": decay}).allot(sure, budget)
    chosen = [end * r for end, count in zip(ends, counts, strict=True) for r in rank[:count]]
    assert sorted(chosen, reverse=True) == pytest.approx(best)


@given(margins, budgets, st.data())
def test_a_surer_position_gets_no_more_branches(sure: list[float], budget: int, data: st.DataObject) -> None:
    """And no later position loses any: what is less likely to end here is likelier to go on."""
    assume(sure)
    position = data.draw(st.integers(0, len(sure) - 1))
    surer = [*sure[:position], sure[position] + data.draw(st.floats(0, 10)), *sure[position + 1 :]]
    before, after = Adaptive().allot(sure, budget), Adaptive().allot(surer, budget)
    assert after[position] <= before[position]
    assert all(a >= b for a, b in zip(after[position + 1 :], before[position + 1 :], strict=True))


@given(st.integers(1, 12), budgets)
def test_a_sure_draft_prepares_for_being_accepted_whole(k: int, budget: int) -> None:
    """At a margin of 30 every rejection together is unlikelier than the last candidate behind all."""
    assert Adaptive(**{"lambda": 0.9}).allot([30.0] * k, budget) == [0] * k + [budget]


@pytest.mark.parametrize("margin", [0.0, 0.2])
def test_an_unsure_draft_prepares_for_early_rejections(margin: float) -> None:
    """Near a tie at every position most branches stand at the first, and several positions have some."""
    counts = Adaptive(**{"lambda": 0.4}).allot([margin] * 6, 8)
    assert counts[0] == max(counts)
    assert sum(count > 0 for count in counts) >= 3


@given(st.lists(st.sampled_from([-math.inf, -1e300, 1e300, math.inf]), max_size=6), budgets)
def test_adaptive_takes_any_margin(sure: list[float], budget: int) -> None:
    """Numbers beyond every scale are certainty, not an overflow."""
    assert sum(Adaptive().allot(sure, budget)) == budget


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("geometric", {"lambda": 1.5}),
        ("geometric", {"lambda": "wide"}),
        ("geometric", {"acceptance": 0}),
        ("geometric", {"exponent": True}),
        ("geometric", {"lamda": 0.5}),
        ("uniform", {"lambda": 0.5}),
        ("adaptive", {"lambda": 1}),
        ("adaptive", {"slope": 0}),
        ("adaptive", {"bias": math.nan}),
        ("adaptive", {"bias": "high"}),
        ("adaptive", {"acceptance": 0.5}),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, Any]) -> None:
    """A wrong or misspelt option is a ConfigError that names the policy, never ignored."""
    manager = PluginManager()
    manager.load()
    with pytest.raises(ConfigError, match=f"cache policy '{name}' cannot be made: "):
        manager.registries.cache_policies.get(name)(**options)

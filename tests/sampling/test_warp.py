"""Truncation leaves what transformers' own warpers leave."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.warp import BANNED, MASS_BITS, is_usable, largest, masses, scaled, support

SIZES = (7, 513, 3000)


def random_logits(seed: int, size: int, spread: float = 3.0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def kept_ids(logits: Tensor, draw: Draw) -> list[int]:
    return support(scaled(logits, draw.temperature), draw).token_ids.tolist()


def kept_by_transformers(logits: Tensor, draw: Draw) -> list[int]:
    """The order of `GenerationMixin._get_logits_processor`."""
    warpers = LogitsProcessorList([TemperatureLogitsWarper(draw.temperature)])
    if draw.top_k:
        warpers.append(TopKLogitsWarper(draw.top_k))
    if draw.top_p < 1:
        warpers.append(TopPLogitsWarper(draw.top_p))
    if draw.min_p:
        warpers.append(MinPLogitsWarper(draw.min_p))
    warped = warpers(torch.zeros((1, 1), dtype=torch.int64), logits.double()[None])[0]
    return [int(i) for i in warped.isfinite().nonzero()]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
def test_supports_equal_transformers(size: int, temperature: float) -> None:
    """Every combination of top-k, top-p and min-p, on random rows in double precision."""
    grid = itertools.product([0, 1, 5, 40], [0.1, 0.5, 0.9, 0.999, 1.0], [0.0, 0.02, 0.3])
    for seed, (top_k, top_p, min_p) in enumerate(grid):
        draw = Draw(0, temperature, top_k, top_p, min_p)
        logits = random_logits(seed, size)
        assert kept_ids(logits, draw) == kept_by_transformers(logits, draw), draw


@pytest.mark.parametrize("draw", [Draw(0, 1.0, top_k=1), Draw(0, 1.0, top_p=1e-4), Draw(0, 1.0, min_p=1.0)])
def test_extreme_truncation_is_greedy(draw: Draw) -> None:
    """Only the best token stays."""
    logits = random_logits(1, 3000)
    assert kept_ids(logits, draw) == [int(logits.argmax())]


def test_equal_values_are_kept_by_lower_id() -> None:
    """Ties at the border of top-k and top-p are decided, not left to a sorting algorithm."""
    assert kept_ids(torch.zeros(2000), Draw(0, 1.0, top_k=5)) == [0, 1, 2, 3, 4]
    assert kept_ids(torch.zeros(2000), Draw(0, 1.0, top_p=0.25)) == list(range(500))
    assert kept_ids(torch.zeros(8), Draw(0, 1.0, top_k=4, top_p=0.5)) == [0, 1]


def test_the_nucleus_is_taken_of_what_top_k_left() -> None:
    """Four equal tokens hold half the mass of eight; of the four that top-k leaves, two do."""
    logits = torch.tensor([0.0, 0.0, 0.0, 0.0, -0.1, -0.1, -0.1, -0.1])
    assert len(kept_ids(logits, Draw(0, 1.0, top_p=0.5))) == 4
    assert len(kept_ids(logits, Draw(0, 1.0, top_k=4, top_p=0.5))) == 2


@settings(max_examples=50)
@given(st.integers(0, 1000), st.sampled_from(SIZES), st.floats(0.001, 0.999))
def test_the_nucleus_is_the_shortest_prefix_that_holds_the_mass(seed: int, size: int, top_p: float) -> None:
    """By the definition, in unlimited integers."""
    scores = scaled(random_logits(seed, size), 0.8)
    mass = masses(scores).tolist()
    order = sorted(range(size), key=lambda i: (-float(scores[i]), i))
    wanted = math.ceil(Fraction(top_p) * sum(mass))
    prefix = next(n for n in range(1, size + 1) if sum(mass[i] for i in order[:n]) >= wanted)
    kept = support(scores, Draw(0, 0.8, top_p=top_p)).token_ids.tolist()
    assert kept == sorted(order[:prefix])


def test_masses_are_the_probabilities() -> None:
    """2^40 at the best token, within 1e-6 of the exponential, nothing 28 below."""
    scores = torch.linspace(-27, 0, 10_001)
    exact = scores.double().exp() * 2.0**MASS_BITS
    assert torch.all((masses(scores) - exact).abs() <= exact * 3e-6 + 1)
    assert masses(torch.tensor([0.0, -28.5, BANNED])).tolist() == [2**MASS_BITS, 0, 0]


def test_masses_do_not_depend_on_their_place() -> None:
    """Every element the same bits alone as anywhere in a vector of any length."""
    scores = scaled(random_logits(0, 1001), 0.7)
    whole = masses(scores)
    assert all(torch.equal(masses(scores[i:]), whole[i:]) for i in range(0, 1001, 77))


def test_tiny_and_huge_temperatures_stay_finite() -> None:
    """1e-6 is greedy in effect, 1e-40 does not divide by zero, 1e6 is uniform in effect."""
    logits = random_logits(0, 1000)
    for temperature in (1e-40, 1e-6, 1e6):
        scores = scaled(logits, temperature)
        assert scores.isfinite().all()
        assert scores.amax() == 0
    assert kept_ids(logits, Draw(0, 1e-6, top_p=0.9999)) == [int(logits.argmax())]


def test_bans_are_legal_and_anything_else_not_finite_is_not() -> None:
    """-inf bans a token; NaN, +inf, or nothing but bans make a row unusable, wherever they stand."""
    for place in range(0, 1003, 17):
        row = random_logits(2, 1003)
        row[place] = -torch.inf
        assert is_usable(row)
        assert scaled(row, 0.7)[place] == BANNED
        for bad in (torch.nan, torch.inf):
            row[place] = bad
            assert not is_usable(row)
    assert not is_usable(torch.full((9,), -torch.inf))


@settings(max_examples=60)
@given(st.integers(0, 1000), st.sampled_from(SIZES), st.integers(1, 7), st.sampled_from([0.0, 1.0, 30.0]))
def test_largest_is_a_stable_sort(seed: int, size: int, count: int, spread: float) -> None:
    """The first of the values in descending order, equal ones by lower index, at every size and spread."""
    values = random_logits(seed, size, spread).round(decimals=1)
    expected = values.argsort(descending=True, stable=True)[:count]
    assert torch.equal(largest(values, count), expected)

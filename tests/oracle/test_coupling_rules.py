"""The ratio rule of the comparison, held against enumeration; rounds walked by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from scripts.coupling import Chances, Rounds, ratio, ratio_given, walk

FAN_OUT = 2
P = torch.tensor([0.05, 0.4, 0.3, 0.05, 0.2], dtype=torch.float64)
Q = torch.tensor([0.5, 0.15, 0.05, 0.2, 0.1], dtype=torch.float64)


def guesses(q: Tensor, without: int | None = None) -> list[int]:
    order: list[int] = q.argsort(descending=True).tolist()
    return [token for token in order if token != without][:FAN_OUT]


def enumerated(p: Tensor, q: Tensor) -> Chances:
    """Every draft and bonus with its probability, straight from the rule's definition."""
    residual = (p - q).clamp(min=0)
    accept = caught = 0.0
    for sent, bonus in itertools.product(range(len(p)), repeat=2):
        accepted = min(1.0, float(p[sent] / q[sent]))
        accept += float(q[sent]) * accepted / len(p)
        rejected = float(q[sent]) * (1 - accepted) * float(residual[bonus] / residual.sum())
        caught += rejected * (bonus in guesses(q, without=sent))
    return Chances(accept, caught, sum(float(p[token]) for token in guesses(q)))


def test_ratio_chances_are_those_of_an_enumeration() -> None:
    """Acceptance, and the bonus among the guesses, in closed form."""
    exact, expected = ratio(P, Q, FAN_OUT), enumerated(P, Q)
    assert exact.accept == pytest.approx(expected.accept)
    assert exact.caught == pytest.approx(expected.caught)
    assert exact.free == pytest.approx(expected.free)


def test_equal_distributions_always_accept() -> None:
    """No residual is left, and nothing is divided by it."""
    assert ratio(P, P, FAN_OUT) == Chances(1.0, 0.0, float(P[1] + P[2]))


def test_draws_given_the_target_tokens_have_the_same_chances() -> None:
    """20000 draws; each of the three means is off by five standard errors once in a million runs."""
    uniforms = np.random.default_rng(5)
    tokens = uniforms.choice(len(P), size=20000, p=P.numpy())
    total = sum((ratio_given(int(token), P, Q, FAN_OUT, uniforms) for token in tokens), Chances())
    mean, exact = total / len(tokens), ratio(P, Q, FAN_OUT)
    for name in ("accept", "caught", "free"):
        assert getattr(mean, name) == pytest.approx(getattr(exact, name), abs=5 * 0.5 / len(tokens) ** 0.5)


def test_rounds_end_at_a_rejection_or_behind_the_last_draft() -> None:
    """Two accepted and a free token; a rejected one that was guessed; what is unfinished is left out."""
    yes, guessed, free = Chances(1, 0, 0), Chances(0, 1, 0), Chances(1, 0, 1)
    assert walk([yes, yes, free, guessed, yes], length=2) == Rounds(count=2, tokens=4, hits=2)

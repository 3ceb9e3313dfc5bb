"""Log probabilities of one row: the model's own, and of what is drawn from."""

from __future__ import annotations

import math

import pytest
import torch

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.logprobs import drawn_from, entry, own, prompt_entries

LOGITS = torch.tensor([1.0, 3.0, -torch.inf, 2.0, 0.0])


@pytest.mark.parametrize("shift", [0.0, 1000.0, -1000.0])
def test_own_is_the_log_softmax_wherever_the_logits_lie(shift: float) -> None:
    """No overflow, no underflow; a ban stays minus infinity."""
    kept = own(LOGITS + shift)
    assert torch.allclose(kept.scores, LOGITS.log_softmax(0), atol=1e-4)
    assert kept.token_ids.tolist() == [0, 1, 2, 3, 4]


def test_temperature_zero_is_told_without_truncation() -> None:
    """Its distribution would be one token; what is told is that of temperature 1."""
    greedy = Draw(0, 0.0, top_k=2, top_p=0.1)
    assert torch.equal(drawn_from(LOGITS, greedy).scores, own(LOGITS).scores)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_what_is_drawn_from_is_warped_and_sums_to_one(temperature: float) -> None:
    """Two tokens are left of five."""
    kept = drawn_from(LOGITS, Draw(0, temperature, top_k=2))
    assert kept.token_ids.tolist() == [1, 3]
    assert torch.allclose(kept.scores, (torch.tensor([3.0, 2.0]) / temperature).log_softmax(0))


@pytest.mark.parametrize("token", [0, 2, 4])
def test_a_token_that_is_not_left_is_impossible(token: int) -> None:
    """Below, between and above those that are."""
    told = entry(drawn_from(LOGITS, Draw(0, 1.0, top_k=2)), token, 5)
    assert told.logprob == -math.inf
    assert [other.token_id for other in told.top] == [1, 3]


def test_alternatives_are_possible_ones_best_first() -> None:
    """As many as there are; a banned token is none."""
    told = entry(own(LOGITS), 3, 5)
    assert [other.token_id for other in told.top] == [1, 3, 0, 4]
    assert told.logprob == told.top[1].logprob
    assert entry(own(LOGITS), 3, 0).top == ()
    assert [other.token_id for other in entry(own(LOGITS), 3, 1).top] == [1]


def test_prompt_entries_belong_to_their_own_rows() -> None:
    """Row i tells token i."""
    rows = torch.stack((LOGITS, LOGITS.flip(0)))
    first, second = prompt_entries(rows, (1, 1), 1)
    assert first.logprob != second.logprob
    assert [other.token_id for other in (*first.top, *second.top)] == [1, 3]

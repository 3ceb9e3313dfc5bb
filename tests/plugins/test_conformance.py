"""The conformance suite accepts every honest proposer and names what a bad one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_runtime.testing.conformance import check_proposer, check_warper

VOCAB = 50


class Functional:
    """A proposer made of a function."""

    def __init__(self, function: Callable[[Any, int], Any]) -> None:
        self._function = function

    def propose(self, token_ids: Sequence[int], k: int) -> Any:
        """What the function says."""
        return self._function(token_ids, k)


def clear(token_ids: Any, k: int) -> list[int]:
    """Empties the text where it can."""
    if isinstance(token_ids, list):
        token_ids.clear()
    return []


@pytest.mark.parametrize(
    "function", [lambda ids, k: [], lambda ids, k: (VOCAB - 1,) * k, lambda ids, k: list(ids[-k:])]
)
def test_honest_proposers_pass(function: Callable[[Any, int], Any]) -> None:
    """Proposing nothing, as much as allowed, or a repetition is fine."""
    check_proposer(Functional(function), VOCAB)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda ids, k: None, r"<0 tokens: \[\] …>, 1\): wrong type: got None"),
        (lambda ids, k: [VOCAB], "token id out of range: got 50, expected 0 to 49"),
        (lambda ids, k: [0] * (k + 1), "too many tokens: got 2, expected at most 1"),
        (lambda ids, k: list(ids), "too many tokens"),
        (lambda ids, k: ids if isinstance(ids, list) else [], "the very list"),
        (clear, "changed the text"),
    ],
)
def test_broken_contract_is_named(function: Callable[[Any, int], Any], message: str) -> None:
    """The message says which question was asked and what was wrong with the answer."""
    with pytest.raises(AssertionError, match=message):
        check_proposer(Functional(function), VOCAB)


def test_error_in_the_plugin_comes_through() -> None:
    """What the proposer raises is the author's to see, with its traceback."""
    with pytest.raises(IndexError):
        check_proposer(Functional(lambda ids, k: [ids[-1]]), VOCAB)


def test_slow_answer_is_named() -> None:
    """An answer after the time limit does not pass; no answer comes within no time at all."""
    with pytest.raises(AssertionError, match="expected at most 0 s"):
        check_proposer(Functional(lambda ids, k: []), VOCAB, time_limit=0)


class Warping:
    """A warper made of a function."""

    def __init__(self, function: Callable[[Tensor, Sequence[int], int], Any]) -> None:
        self._function = function

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Any:
        """What the function says."""
        return self._function(logits, token_ids, num_prompt)


def no_repetition(logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
    """Bans the last token, in place."""
    logits[token_ids[-1]] = -torch.inf
    return logits


def test_honest_warpers_pass() -> None:
    """One that changes nothing, one that works in place, one that looks at the length of the answer."""
    check_warper(lambda: Warping(lambda logits, text, num: logits), VOCAB)
    check_warper(lambda: Warping(no_repetition), VOCAB)
    check_warper(lambda: Warping(lambda logits, text, num: logits * (1 + len(text) - num)), VOCAB)


def counting() -> Warping:
    """Remembers how often it was asked."""
    calls: list[int] = []

    def warp(logits: Tensor, text: Sequence[int], num: int) -> Tensor:
        calls.append(num)
        return logits * len(calls)

    return Warping(warp)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Warping(lambda logits, text, num: None), r"got NoneType, expected a tensor"),
        (lambda: Warping(lambda logits, text, num: logits[:3]), r"got torch.float32 \(3,\), expected"),
        (lambda: Warping(lambda logits, text, num: logits.double()), r"got torch.float64"),
        (lambda: Warping(lambda logits, text, num: logits - torch.inf), "nothing is left"),
        (counting, r"<4000 tokens: .*another answer when asked again"),
    ],
)
def test_broken_warpers_are_named(make: Callable[[], Warping], message: str) -> None:
    """The message says which question was asked and what was wrong."""
    with pytest.raises(AssertionError, match=message):
        check_warper(make, VOCAB)

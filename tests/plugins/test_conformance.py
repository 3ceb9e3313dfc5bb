"""The conformance suite accepts every honest proposer and names what a bad one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from ssd_runtime.testing.conformance import check_proposer

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

"""The comparison of cross-entropies, on distributions whose entropy is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from scripts.measure_quality import cross_entropy, shipped_text, windows

VOCAB = 8


def uniform(window: Sequence[int]) -> NDArray[np.float32]:
    """Knows nothing."""
    return np.zeros((len(window), VOCAB), np.float32)


def successor(window: Sequence[int]) -> NDArray[np.float32]:
    """Gives the next number the odds e^2 : 1 against each other token."""
    logits = uniform(window)
    logits[np.arange(len(window)), [(token + 1) % VOCAB for token in window]] = 2.0
    return logits


def test_knowing_nothing_costs_the_logarithm_of_the_vocabulary() -> None:
    """Whatever the tokens are."""
    assert cross_entropy(uniform, [1, 5, 2, 2, 7], 2) == pytest.approx(math.log(VOCAB))


def test_each_token_is_judged_by_what_stands_before_it_in_its_window() -> None:
    """The likely one costs two nats less than another."""
    right = math.log(math.exp(2) + VOCAB - 1) - 2
    assert cross_entropy(successor, [0, 1, 2, 3, 4, 5], 3) == pytest.approx(right)
    assert cross_entropy(successor, [0, 2], 3) == pytest.approx(right + 2)


def test_the_first_token_of_a_window_is_not_judged() -> None:
    """Nothing stands before it."""
    assert cross_entropy(successor, [0, 1, 7, 0, 3], 2) == cross_entropy(successor, [0, 1], 2)


def test_windows_hold_every_token_once() -> None:
    """The last one may be shorter."""
    assert [list(window) for window in windows(range(5), 2)] == [[0, 1], [2, 3], [4]]


def test_the_shipped_text_is_long_enough() -> None:
    """A token has about four characters, and 20 000 are wanted."""
    assert len(shipped_text()) > 4 * 20_000

"""Prompt lookup: the longest match, then the latest, then what followed it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.testing.conformance import check_proposer

TEXTS = st.lists(st.integers(0, 3), max_size=40)


def test_what_followed_the_last_time_is_proposed() -> None:
    """The text's end occurred before: its continuation is the proposal."""
    assert list(NgramProposer().propose([1, 2, 3, 4, 5, 9, 1, 2], 3)) == [3, 4, 5]


def test_longest_match_is_preferred_to_the_latest() -> None:
    """Three matching tokens far away beat two close by."""
    assert list(NgramProposer().propose([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], 1)) == [7]


def test_latest_of_equally_long_matches_is_preferred() -> None:
    """Of two equal matches the one nearer the end counts."""
    assert list(NgramProposer().propose([2, 3, 7, 2, 3, 8, 2, 3], 1)) == [8]


def test_match_beyond_the_maximum_is_no_longer() -> None:
    """Matches are compared up to `max_match` tokens only."""
    text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert list(NgramProposer(max_match=2).propose(text, 1)) == [8]


def test_short_match_is_none() -> None:
    """A match of fewer than `min_match` tokens proposes nothing."""
    text = [2, 7, 2]
    assert list(NgramProposer().propose(text, 2)) == []
    assert list(NgramProposer(min_match=1).propose(text, 2)) == [7, 2]


def test_repetition_goes_on_for_as_long_as_wanted() -> None:
    """A continuation that reaches the text's end repeats the period."""
    assert list(NgramProposer().propose([9, 1, 2, 1, 2], 5)) == [1, 2, 1, 2, 1]
    assert list(NgramProposer().propose([4, 4, 4], 4)) == [4, 4, 4, 4]


def test_only_the_latest_candidates_are_looked_at() -> None:
    """The search ends after `max_candidates` places of the last token."""
    text = [1, 2, 3, *[3] * 3, 9, 3, 8, 3, 1, 2]
    assert list(NgramProposer(max_candidates=1).propose([*text, 5, 2, 1, 2], 1)) == []
    assert list(NgramProposer(max_candidates=2).propose([*text, 5, 2, 1, 2], 1)) == [5]


@pytest.mark.parametrize("options", [{"min_match": 0}, {"min_match": 6}, {"max_candidates": 0}])
def test_impossible_options_are_refused(options: dict[str, int]) -> None:
    """An option out of range is an error at the start."""
    with pytest.raises(ValueError, match="expected 1 <= min_match <= max_match"):
        NgramProposer(**options)


@given(text=TEXTS, k=st.integers(0, 6), min_match=st.integers(1, 3), more=st.integers(0, 3))
def test_equals_the_definition(text: list[int], k: int, min_match: int, more: int) -> None:
    """For every text the proposal is that of a search that tries all lengths and places."""
    proposer = NgramProposer(min_match, min_match + more)
    assert list(proposer.propose(text, k)) == by_definition(text, k, min_match, min_match + more)


def by_definition(text: list[int], k: int, min_match: int, max_match: int) -> list[int]:
    """Longest length first, latest place first, copied token by token."""
    for length in range(max_match, min_match - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                grown = list(text)
                for place in range(end, end + k):
                    grown.append(grown[place])
                return grown[len(text) :]
    return []


def test_conforms() -> None:
    """The shipped conformance suite accepts it."""
    check_proposer(NgramProposer(), vocab_size=1000)

"""Suffix decoding: places vote, longer matches reach further, doubtful tokens are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_plugins.suffix import SuffixProposer
from ssd_runtime.testing.conformance import check_proposer


def test_majority_decides_between_places_of_equal_match() -> None:
    """Two places against one: the two win although the one is the latest."""
    assert list(SuffixProposer().propose([5, 6, 1, 5, 6, 2, 5, 7, 3, 5], 1)) == [6]


def test_latest_place_decides_a_tie() -> None:
    """One place each: the nearer one counts."""
    assert list(SuffixProposer().propose([5, 6, 1, 5, 7, 3, 5], 1)) == [7]


def test_proposal_is_as_long_as_the_match() -> None:
    """Two matching tokens justify two proposed ones, three justify three."""
    text = [1, 2, 3, 4, 5, 6, 7]
    assert list(SuffixProposer().propose([*text, 9, 2, 3], 6)) == [4, 5]
    assert list(SuffixProposer().propose([*text, 9, 1, 2, 3], 6)) == [4, 5, 6]
    assert list(SuffixProposer().propose([*text, 9, 1, 2, 3], 2)) == [4, 5]


def test_outvoted_places_no_longer_vote() -> None:
    """After the first token only the places that had it decide about the second."""
    text = [5, 5, 6, 1, 5, 5, 6, 1, 5, 5, 7, 2, 5, 5, 8, 2, 9, 5, 5]
    assert list(SuffixProposer().propose(text, 4)) == [6, 1]


def test_improbable_tokens_are_left_out() -> None:
    """A token that one place in four supports is proposed only where that is enough."""
    text = [5, 1, 5, 2, 5, 3, 5, 4, 5]
    assert list(SuffixProposer(min_probability=0.25).propose(text, 1)) == [4]
    assert list(SuffixProposer(min_probability=0.26).propose(text, 1)) == []


def test_repetition_goes_on_beyond_the_texts_end() -> None:
    """A continuation that reaches the end of the text repeats the period."""
    assert list(SuffixProposer().propose([1, 2, 1, 2, 1, 2], 4)) == [1, 2, 1, 2]


def test_new_token_has_no_proposal() -> None:
    """Where the last token never stood before, and in an empty text, there is nothing to say."""
    assert list(SuffixProposer().propose([1, 2, 3], 4)) == []
    assert list(SuffixProposer().propose([], 4)) == []


@given(period=st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True), k=st.integers(1, 8))
def test_periodic_text_is_continued_exactly(period: list[int], k: int) -> None:
    """Ten repetitions of distinct tokens leave no doubt about the eleventh."""
    expected = (period * 20)[: min(k, 8)]
    assert list(SuffixProposer().propose(period * 10, k)) == expected


@pytest.mark.parametrize("options", [{"max_match": 0}, {"max_candidates": 0}, {"min_probability": 1.5}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    """An option out of range is an error at the start."""
    with pytest.raises(ValueError, match="expected counts of at least 1"):
        SuffixProposer(**options)  # type: ignore[arg-type]


def test_conforms() -> None:
    """The shipped conformance suite accepts it."""
    check_proposer(SuffixProposer(), vocab_size=1000)

"""The store of many texts: where the same tokens stand, in little memory, with or without a filter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_plugins.store import GRAM, TextStore

texts = st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=30)
ends = st.lists(st.integers(0, 3), min_size=GRAM, max_size=6)


def places_of(store: TextStore, end: Sequence[int], most: int = 1000) -> list[tuple[list[int], int]]:
    return [(list(text), offset) for text, offset in store.places(end, most)]


def where(kept: Sequence[Sequence[int]], end: Sequence[int]) -> list[tuple[list[int], int]]:
    """Every place, as one finds them by looking everywhere."""
    gram = list(end[-GRAM:])
    return [
        (list(text), at)
        for text in kept
        for at in range(GRAM, len(text))
        if list(text[at - GRAM : at]) == gram
    ]


@settings(max_examples=200, deadline=None)
@given(texts, ends, st.booleans())
def test_every_place_is_found_and_no_other(added: list[list[int]], end: list[int], bloom: bool) -> None:
    """In whatever order texts of whatever lengths came, merged or not."""
    store = TextStore(100, 1000, bloom=bloom)
    for text in added:
        store.add(tuple(text))
    assert sorted(places_of(store, end)) == sorted(where(added, end))


@settings(max_examples=200, deadline=None)
@given(texts, st.lists(ends, max_size=10), st.integers(1, 4), st.integers(1, 40))
def test_a_filter_changes_no_answer(
    added: list[list[int]], asked: list[list[int]], max_texts: int, max_tokens: int
) -> None:
    """Nor which texts are kept: two stores with the same history answer alike."""
    plain, filtered = (TextStore(max_texts, max_tokens, bloom=bloom) for bloom in (False, True))
    for i, text in enumerate(added):
        for store in (plain, filtered):
            store.add(tuple(text))
        end = asked[i % len(asked)] if asked else []
        assert places_of(plain, end, 3) == places_of(filtered, end, 3)
    assert (len(plain), plain.num_tokens) == (len(filtered), filtered.num_tokens)


@given(texts, st.integers(1, 5), st.integers(1, 40))
def test_there_are_never_too_many_texts_or_tokens(
    added: list[list[int]], max_texts: int, max_tokens: int
) -> None:
    """A text that is too long by itself is not kept."""
    store = TextStore(max_texts, max_tokens)
    for text in added:
        store.add(tuple(text))
        assert len(store) <= max_texts
        assert store.num_tokens <= max_tokens


def test_the_latest_places_come_first() -> None:
    """And no more of them than wanted."""
    store = TextStore(10, 1000)
    for last in range(5):
        store.add((1, 2, 3, last))
    assert [text[3] for text, _ in store.places((1, 2, 3), 2)] == [4, 3]


def test_what_was_of_use_stays() -> None:
    """The text goes that was neither added nor found for longest."""
    store = TextStore(2, 1000)
    store.add((1, 2, 3, 4))
    store.add((5, 6, 7, 8))
    assert places_of(store, (1, 2, 3))
    store.add((9, 9, 9, 9))
    assert places_of(store, (1, 2, 3))
    assert not places_of(store, (5, 6, 7))


def test_the_end_of_a_text_is_no_place() -> None:
    """Nothing follows it."""
    store = TextStore(2, 1000)
    store.add((1, 2, 3))
    store.add((5, 1, 2, 3))
    assert not places_of(store, (1, 2, 3))


def test_short_texts_know_nothing() -> None:
    """A question shorter than what places are known by has no answer."""
    store = TextStore(2, 1000)
    store.add((1, 2, 3, 4))
    assert not places_of(store, (2, 3))
    assert not places_of(store, ())


def test_ids_of_any_size_are_told_apart() -> None:
    """Two ids that share their lower bits make one gram; the texts tell which it is."""
    big = 1 << 20
    store = TextStore(2, 1000)
    store.add((1, 2, 3 + big, 4))
    assert places_of(store, (1, 2, 3)) == [([1, 2, 3 + big, 4], 3)]


@pytest.mark.parametrize("bloom", [False, True])
def test_memory_is_bounded_however_many_texts_come(bloom: bool) -> None:
    """Grams of texts that are gone go with the next merge; the filter is made anew when it is full."""
    store = TextStore(50, 2000, bloom=bloom)
    tokens = np.random.default_rng(1).integers(0, 1000, (2000, 40)).tolist()
    for text in tokens:
        store.add(text)
    assert sum(len(segment.grams) for segment in store._segments) < 3 * 2000
    assert len(store._segments) < 12
    for text in tokens[-50:]:
        assert (text, 10) in places_of(store, text[:10])

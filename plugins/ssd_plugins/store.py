"""Texts of many requests, and where in them the same few tokens stand in a row.

What a place is known by is a *gram*: its last `GRAM` tokens in one number. Sorted arrays of grams take a
tenth of what a dictionary does; a new text gets one of its own, and neighbours are merged once they are
of like size, so that there are few of them and each token is merged few times.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rbloom import Bloom

GRAM = 3
_BITS = 20
"""Bits of a token in a gram; ids that differ beyond them are told apart when the texts are compared."""
_MASK = (1 << _BITS) - 1
_OFFSET_BITS = 32
FALSE_POSITIVES = 0.01

Place = tuple[Sequence[int], int]
"""A text, and the position in it behind the gram."""


@dataclass(frozen=True, slots=True)
class _Segment:
    """Grams in ascending order, and where each stands: the text's number, then the position behind it."""

    grams: NDArray[np.int64]
    places: NDArray[np.int64]

    def find(self, gram: int, most: int) -> list[int]:
        """The latest `most` places of a gram, latest first."""
        first = int(self.grams.searchsorted(gram))
        if first == len(self.grams) or self.grams[first] != gram:
            return []
        last = int(self.grams.searchsorted(gram, "right"))
        found: list[int] = self.places[max(first, last - most) : last].tolist()
        return found[::-1]


class TextStore:
    """Up to `max_texts` texts of `max_tokens` tokens in all; the one goes that was of no use for longest.

    bloom: whether a Bloom filter says first which grams are surely absent. It changes no answer.
    """

    def __init__(self, max_texts: int, max_tokens: int, *, bloom: bool = False) -> None:
        """Raises ImportError where a filter is wanted and `rbloom` is not installed."""
        self.num_tokens = 0
        self._max_texts = max_texts
        self._max_tokens = max_tokens
        self._texts: OrderedDict[int, Sequence[int]] = OrderedDict()
        self._next = 0
        self._segments: list[_Segment] = []
        self._filter = _Filter(max_tokens) if bloom else None

    def __len__(self) -> int:
        """Texts that are kept."""
        return len(self._texts)

    def add(self, text: Sequence[int]) -> None:
        """Keep `text` itself, which must not change any more."""
        number, self._next = self._next, self._next + 1
        self._texts[number] = text
        self.num_tokens += len(text)
        while len(self._texts) > self._max_texts or self.num_tokens > self._max_tokens:
            self.num_tokens -= len(self._texts.popitem(last=False)[1])
        if number in self._texts and len(text) > GRAM:
            self._add_segment(_segment(number, text))

    def places(self, end: Sequence[int], most: int) -> Iterator[Place]:
        """Where texts had the last `GRAM` tokens of `end`: at most `most` places, the latest text's first.

        A text that is found has been of use.
        """
        if len(end) < GRAM:
            return
        gram = gram_of(end)
        if self._filter is not None and gram not in self._filter:
            return
        left = most
        for segment in reversed(self._segments):
            for place in segment.find(gram, left):
                number, offset = place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)
                if number in self._texts:
                    self._texts.move_to_end(number)
                    yield self._texts[number], offset
                    left -= 1
            if left == 0:
                return

    def _add_segment(self, new: _Segment) -> None:
        if self._filter is not None:
            self._filter.add(new.grams)
        while self._segments and len(self._segments[-1].grams) < 2 * len(new.grams):
            new = self._merged(self._segments.pop(), new)
        self._segments.append(new)
        if self._filter is not None and self._filter.is_full:
            self._filter = _Filter(self._max_tokens)
            for segment in self._segments:
                self._filter.add(segment.grams)

    def _merged(self, older: _Segment, newer: _Segment) -> _Segment:
        """One segment of the two, without texts that are gone."""
        places = np.concatenate((older.places, newer.places))
        is_kept = np.zeros(self._next, bool)
        is_kept[np.fromiter(self._texts, np.int64, len(self._texts))] = True
        kept = is_kept[places >> _OFFSET_BITS]
        return _sorted(np.concatenate((older.grams, newer.grams))[kept], places[kept])


class _Filter:
    """Which grams were ever added; some others too, none of these left out."""

    def __init__(self, capacity: int) -> None:
        from rbloom import Bloom

        # twice as many, so that those of texts that are gone do not fill it at once
        self._left = 2 * capacity
        self._bloom: Bloom = Bloom(2 * capacity, FALSE_POSITIVES)

    @property
    def is_full(self) -> bool:
        """Whether it says "perhaps" too often by now."""
        return self._left <= 0

    def __contains__(self, gram: int) -> bool:
        return gram in self._bloom

    def add(self, grams: NDArray[np.int64]) -> None:
        """Add every one of `grams`."""
        self._left -= len(grams)
        self._bloom.update(grams.tolist())


def gram_of(end: Sequence[int]) -> int:
    """The last `GRAM` tokens of `end` as one number."""
    first, second, third = end[-GRAM:]
    return (first & _MASK) << 2 * _BITS | (second & _MASK) << _BITS | (third & _MASK)


def _segment(number: int, text: Sequence[int]) -> _Segment:
    """The grams of one text, but for its last one: nothing follows it."""
    tokens = np.fromiter(text, np.int64, len(text)) & _MASK
    grams = tokens[:-3] << 2 * _BITS | tokens[1:-2] << _BITS | tokens[2:-1]
    places = (number << _OFFSET_BITS) + np.arange(GRAM, len(text), dtype=np.int64)
    return _sorted(grams, places)


def _sorted(grams: NDArray[np.int64], places: NDArray[np.int64]) -> _Segment:
    """Places of one gram stay in their order, which is that of the texts' arrival."""
    order = np.argsort(grams, kind="stable")
    return _Segment(grams[order], places[order])

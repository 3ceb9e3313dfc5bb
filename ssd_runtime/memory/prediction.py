"""What a client expects the answer to be, and where in it an answer stands: a proposer's best source."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

LONGEST = 4
"""Tokens at the end of an answer by which its place is looked for."""


class Prediction:
    """A predicted answer. Finding a place costs a few look-ups, however long it is."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        """Reads all of `token_ids` several times: not for an event loop."""
        self._token_ids = tuple(token_ids)
        self._places: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for end in range(1, len(self._token_ids) + 1):
            for size in range(1, min(LONGEST, end) + 1):
                self._places[self._token_ids[end - size : end]].append(end)

    def continuation(self, answer: Sequence[int], length: int, k: int) -> tuple[int, ...]:
        """Up to `k` tokens that follow where the prediction stands like the end of the answer.

        answer: its last tokens, at least `LONGEST` where there are so many. length: of the whole answer;
        of several places the nearest to it is taken. Nothing where the answer has left the prediction.
        """
        if not length:
            return self._token_ids[:k]
        for size in range(min(LONGEST, len(answer)), 0, -1):
            places = self._places.get(tuple(answer[-size:]))
            if places:
                place = _nearest(places, length)
                return self._token_ids[place : place + k]
        return ()


def _nearest(places: Sequence[int], wanted: int) -> int:
    """The element of ascending `places` that is nearest to `wanted`; the later one of two."""
    at = bisect_left(places, wanted)
    return min(places[max(at - 1, 0) : at + 1], key=lambda place: (abs(place - wanted), -place))

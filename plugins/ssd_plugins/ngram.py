"""Prompt lookup: what followed the last time the text ended like this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice


class NgramProposer:
    """Continues the longest earlier match of the text's end; among equally long ones the latest.

    A match has `min_match` to `max_match` tokens; only the `max_candidates` latest places where the
    last token stood are looked at. What follows a match may run into the text's end and is then
    repeated, so that a text that repeats itself is continued for as long as wanted. Stateless;
    4000 tokens take about 0.1 ms.
    """

    name = "ngram"

    def __init__(self, min_match: int = 2, max_match: int = 5, max_candidates: int = 256) -> None:
        """Raises ValueError unless 1 <= min_match <= max_match and max_candidates >= 1."""
        if not 1 <= min_match <= max_match or max_candidates < 1:
            raise ValueError(
                f"got min_match {min_match}, max_match {max_match}, max_candidates {max_candidates}; "
                "expected 1 <= min_match <= max_match and max_candidates >= 1"
            )
        self._min_match = min_match
        self._max_match = max_match
        self._max_candidates = max_candidates

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """Up to `k` tokens; none where no end of the text occurred before."""
        distance = self._distance(tuple(token_ids)[::-1])
        if distance == 0 or k <= 0:
            return ()
        repeated = tuple(token_ids[-distance:])
        return (repeated * (k // distance + 1))[:k]

    def _distance(self, backwards: tuple[int, ...]) -> int:
        """How far before the text's last token the best match ends; 0 without one."""
        best, longest = 0, self._min_match - 1
        for distance in islice(places(backwards), self._max_candidates):
            length = match_length(backwards, distance, self._max_match)
            if length > longest:
                best, longest = distance, length
                if length == self._max_match:
                    break
        return best


def places(backwards: tuple[int, ...]) -> Iterator[int]:
    """Where the first token of `backwards` stands again, nearest first."""
    place = 0
    while True:
        try:
            place = backwards.index(backwards[0], place + 1)
        except (IndexError, ValueError):
            return
        yield place


def match_length(backwards: tuple[int, ...], distance: int, most: int) -> int:
    """How many first tokens of `backwards` stand again `distance` later, the first being known to."""
    length = 1
    for earlier in backwards[distance + 1 : distance + most]:
        if earlier != backwards[length]:
            break
        length += 1
    return length

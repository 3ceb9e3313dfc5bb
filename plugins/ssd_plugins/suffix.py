"""Suffix decoding: all earlier places that resemble the text's end vote on what follows.

After Oliaro and others, "SuffixDecoding: A Model-Free Approach to Speeding Up Large Language Model
Inference" (2024): on the text itself, and where that is asked for on the answers of earlier requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from ssd_plugins.ngram import match_length, places
from ssd_plugins.store import GRAM, TextStore

Guess = tuple[list[int], float]
"""A proposal, and how many tokens of it to expect."""
Candidate = tuple[int, Sequence[int]]
"""A place that resembles the text's end: how many tokens match, and what followed there."""

STORE_CANDIDATES = 16
"""Places in other texts that are asked; each may have to be unpacked."""


class SuffixProposer:
    """Proposes what most places that match the end agree on, the longer the longer the match.

    For each length of match the places vote token by token, and a place that is outvoted drops out.
    The probability of a proposal is the share of places left; it ends before that falls below
    `min_probability`, and after as many tokens as the match has. Of all lengths of match the one
    whose proposal has the most expected tokens serves. Matches count up to `max_match` tokens, and
    only the `max_candidates` latest places are asked. 4000 tokens take about 0.1 ms.
    """

    name = "suffix"

    def __init__(self, max_match: int = 32, max_candidates: int = 64, min_probability: float = 0.1) -> None:
        """Raises ValueError unless both counts are at least 1 and min_probability lies in [0, 1]."""
        if max_match < 1 or max_candidates < 1 or not 0 <= min_probability <= 1:
            raise ValueError(
                f"got max_match {max_match}, max_candidates {max_candidates}, min_probability "
                f"{min_probability}; expected counts of at least 1 and a probability in [0, 1]"
            )
        self._max_match = max_match
        self._max_candidates = max_candidates
        self._min_probability = min_probability

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """Up to `k` tokens; none where the last token never stood before."""
        return self._guess(tuple(token_ids)[::-1], k)[0]

    def _guess(self, backwards: tuple[int, ...], k: int) -> Guess:
        """The best that the text itself, read from its end, has to offer."""
        distances = islice(places(backwards), self._max_candidates)
        return self._best([self._own(backwards, distance, k) for distance in distances], k)

    def _own(self, backwards: tuple[int, ...], distance: int, k: int) -> Candidate:
        follows = backwards[max(0, distance - k) : distance][::-1]
        if distance < k:  # it reaches the text's end, and is repeated
            follows = (follows * (k // distance + 1))[:k]
        return match_length(backwards, distance, self._max_match), follows

    def _best(self, candidates: Sequence[Candidate], k: int) -> Guess:
        """What the places propose together that match in at least some number of tokens."""
        best: list[int] = []
        most_expected = 0.0
        for length in sorted({matched for matched, _ in candidates}, reverse=True):
            if min(k, length) <= most_expected:
                break  # no shorter match can expect more
            voters = [follows for matched, follows in candidates if matched >= length]
            proposed, expected = self._vote(voters, min(k, length))
            if expected > most_expected:
                best, most_expected = proposed, expected
        return best, most_expected

    def _vote(self, voters: list[Sequence[int]], k: int) -> Guess:
        """What these places propose together; one whose text ends no longer votes."""
        proposed: list[int] = []
        expected, total = 0.0, len(voters)
        for step in range(k):
            votes = Counter(follows[step] for follows in voters if step < len(follows))
            if not votes:
                break
            token_id, count = votes.most_common(1)[0]
            if count / total < self._min_probability:
                break
            proposed.append(token_id)
            expected += count / total
            voters = [follows for follows in voters if step < len(follows) and follows[step] == token_id]
        return proposed, expected


class SharedSuffixProposer(SuffixProposer):
    """A suffix proposer that remembers answers: what one request said may be proposed to another.

    Never seen by anybody: a proposal only makes a text faster that is generated anyway. But how fast an
    answer comes may tell that somebody got a similar one.
    """

    def __init__(self, store: TextStore, max_match: int, max_candidates: int, min_probability: float) -> None:
        super().__init__(max_match, max_candidates, min_probability)
        self._store = store

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keep the answer; see `Remembering`."""
        self._store.add(answer)

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """The text's own guess, or that of other texts where more of it can be expected."""
        backwards = tuple(token_ids)[::-1]
        own, expected = self._guess(backwards, k)
        if expected >= k:
            return own
        others, more = self._best(list(self._others(backwards, k)), k)
        return others if more > expected else own

    def _others(self, backwards: tuple[int, ...], k: int) -> Iterator[Candidate]:
        end = backwards[GRAM - 1 :: -1]
        most = min(self._max_candidates, STORE_CANDIDATES)
        for text, offset in self._store.places(end, most):
            first = max(0, offset - self._max_match)
            around = text[first : offset + k]
            before = around[: offset - first]
            yield _agreement(reversed(before), backwards), around[len(before) :]


def suffix_proposer(
    max_match: int = 32,
    max_candidates: int = 64,
    min_probability: float = 0.1,
    max_cached_requests: int = 0,
    max_cached_tokens: int = 1_000_000,
    bloom: bool = False,
) -> SuffixProposer:
    """The proposer `suffix`; with `max_cached_requests` above 0 it remembers so many answers.

    Raises ValueError for options that make no sense, or that need a package which is not there.
    """
    if max_cached_requests < 0 or max_cached_tokens < 1:
        raise ValueError(
            f"got max_cached_requests {max_cached_requests}, max_cached_tokens {max_cached_tokens}; "
            "expected 0 (remember nothing) or more, and at least 1"
        )
    if not max_cached_requests:
        if bloom:
            raise ValueError("got bloom, but nothing is remembered; expected max_cached_requests above 0")
        return SuffixProposer(max_match, max_candidates, min_probability)
    try:
        store = TextStore(max_cached_requests, max_cached_tokens, bloom=bloom)
    except ImportError as error:
        raise ValueError(
            "got bloom, but rbloom is not installed; pip install 'ssd-runtime[stores]'"
        ) from error
    return SharedSuffixProposer(store, max_match, max_candidates, min_probability)


def _agreement(one: Iterable[int], other: Iterable[int]) -> int:
    """How many first tokens are the same."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return length

"""What was prepared while the target verified: by outcome, and by text.

`OutcomeCache` answers "exactly this outcome?" for the next round, `SSDCache` keeps one sequence's
settled tokens and everything that was drafted around them. Each belongs to one thread; no locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from ssd_runtime.speculation.shadow import CONTEXT, ShadowTree

T = TypeVar("T")


class Outcome(NamedTuple):
    """How one verification of one sequence ended: after `accepted` drafts came the token `bonus`.

    epoch and round make it unique for all time, so that what was prepared for one round can serve
    the next one only, and nothing survives a sequence's preemption.
    """

    sequence_uid: int
    epoch: int
    round: int
    accepted: int
    bonus: int


class OutcomeCache(Generic[T]):
    """A small exact map from outcomes to what was prepared for them; one generation a sequence."""

    def __init__(self) -> None:
        self._generations: dict[int, Mapping[Outcome, T]] = {}

    def __len__(self) -> int:
        """Entries over all sequences."""
        return sum(len(entries) for entries in self._generations.values())

    def stage(self, sequence_uid: int, entries: Mapping[Outcome, T]) -> None:
        """Replace everything that was prepared for a sequence; the mapping is kept, not copied."""
        self._generations[sequence_uid] = entries

    def take(self, outcome: Outcome) -> T | None:
        """What was prepared for `outcome`, or None; the sequence's other entries are void now."""
        return self._generations.pop(outcome.sequence_uid, {}).get(outcome)

    def forget(self, sequence_uid: int) -> None:
        """Drop everything of a sequence, known or not."""
        self._generations.pop(sequence_uid, None)


class SSDCache:
    """One sequence's two caches: *main*, its settled tokens, and *shadow*, what was drafted around them.

    cache = SSDCache(capacity=4096)
    cache.update([5, 6])                        # the target settled these tokens
    cache.draft([7, 8], [0.9, 0.8])             # somebody guessed 5 6 → 7 8 …
    cache.draft([4, 2], [0.1, 0.7], after=[7])  # … or, had 7 been accepted, 5 6 7 → 4 2
    cache.prune()                               # forget what was hardly likely
    cache.update([9])                           # it came otherwise: a miss
    cache.propose(4)                            # what was ever drafted after this text's end

    Losing branches stay readable for later rounds: text repeats itself, and a token that came one
    round later than guessed is followed by what was guessed to follow it.
    length: settled tokens so far, also those that are no longer kept.
    capacity: settled tokens kept (a ring: the oldest go first), and nodes of the tree kept.
    """

    def __init__(self, capacity: int = 4096) -> None:
        if capacity < CONTEXT:
            raise ValueError(f"got capacity {capacity}, expected at least {CONTEXT}")
        self.length = 0
        self._main: deque[int] = deque(maxlen=capacity)
        self._shadow = ShadowTree(capacity)

    @property
    def token_ids(self) -> list[int]:
        """The settled tokens that are kept, oldest first."""
        return list(self._main)

    @property
    def num_nodes(self) -> int:
        """Nodes in the shadow; at most the capacity, plus what the present round drafted."""
        return self._shadow.num_nodes

    def update(self, token_ids: Sequence[int]) -> None:
        """Append settled tokens and begin a new round; without tokens nothing changes."""
        if token_ids:
            self._main.extend(token_ids)
            self.length += len(token_ids)
            self._shadow.begin_generation()

    def draft(
        self, token_ids: Sequence[int], probabilities: Sequence[float], after: Sequence[int] = ()
    ) -> None:
        """Remember that `token_ids` may follow the settled tokens and then `after`.

        `probabilities[i]` in (0, 1]: the draft's estimate for `token_ids[i]` after all before it.
        Raises ValueError where the two differ in length.
        """
        if len(token_ids) != len(probabilities):
            raise ValueError(f"got {len(probabilities)} probabilities for {len(token_ids)} tokens")
        self._shadow.insert([*self._tail(), *after], token_ids, probabilities)

    def prune(self, threshold: float = 0.02) -> None:
        """Drop this round's branches less likely than `threshold` × its most likely branch.

        Likely means the product of the probabilities; a branch is cut where it falls below.
        """
        self._shadow.prune(threshold)

    def propose(self, k: int) -> list[int]:
        """Up to `k` tokens drafted earlier after the longest end of the text that the shadow knows."""
        return self._shadow.continuation(self._tail(), k)

    def _tail(self) -> list[int]:
        return list(islice(reversed(self._main), CONTEXT))[::-1]

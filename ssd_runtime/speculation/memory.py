"""What speculation keeps of each sequence between two rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ssd_runtime.speculation.cache import SSDCache
from ssd_runtime.speculation.commands import Branch

SHADOW_CAPACITY = 4096
NEVER = -1
"""Before every round."""
UNKNOWN = 0.5
"""The probability of a token about which the draft said nothing."""


@dataclass(slots=True)
class Memory:
    """One sequence's part.

    cache: None where nobody will ask it. length: its tokens when the last build began; built: the round in
    which a build had read them all, so that a look-up in the next one makes sense; settled: how many of its
    tokens the cache was told.
    """

    cache: SSDCache | None = None
    length: int = 0
    built: int = NEVER
    settled: int = 0

    def settle(self, token_ids: Sequence[int]) -> None:
        """Tell the cache what was committed since."""
        if self.cache is not None:
            self.cache.update(token_ids[self.settled :])
            self.settled = len(token_ids)

    def draft(self, branches: Sequence[Branch], sent: Sequence[int]) -> None:
        """Keep in the cache what was prepared while `sent` was verified."""
        if self.cache is None:
            return
        for branch in branches:
            drafted = (branch.bonus, *branch.proposal.token_ids)
            self.cache.draft(drafted, likelihoods(branch), sent[: branch.accepted])
        self.cache.prune()


class Memories:
    """The memories of all sequences, by uid. caching: whether `recall` will be asked."""

    def __init__(self, *, caching: bool = True) -> None:
        self._caching = caching
        self._of: dict[int, Memory] = {}

    def get(self, uid: int) -> Memory | None:
        """The memory of a sequence, if there is one."""
        return self._of.get(uid)

    def of(self, uid: int) -> Memory:
        """The memory of a sequence, made if there is none."""
        if uid not in self._of:
            self._of[uid] = Memory(SSDCache(SHADOW_CAPACITY) if self._caching else None)
        return self._of[uid]

    def forget(self, uid: int) -> bool:
        """Drop a sequence's memory; whether there was one."""
        return self._of.pop(uid, None) is not None

    def recall(self, uid: int, k: int) -> Sequence[int]:
        """What the shadow tree of sequence `uid` knows to follow its settled tokens."""
        memory = self._of.get(uid)
        return memory.cache.propose(k) if memory and memory.cache else ()


def likelihoods(branch: Branch) -> list[float]:
    """Rough probabilities of a branch's bonus and tokens, for ranking branches in the shadow tree.

    A token that leads by the margin m over the next has about 1 / (1 + e^-m) of the two; without a
    guess, as from a proposer that has no model, nothing is known.
    """
    token_ids, guesses = branch.proposal.token_ids, branch.proposal.guesses
    sure = [1 / (1 + math.exp(-min(guess.margin, 30.0))) for guess in guesses[: len(token_ids)]]
    return [UNKNOWN, *sure, *[UNKNOWN] * (len(token_ids) - len(sure))]

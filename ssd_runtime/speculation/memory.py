"""What speculation keeps of each sequence between two rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ssd_runtime.speculation.cache import SSDCache

SHADOW_CAPACITY = 4096


@dataclass(slots=True)
class Memory:
    """One sequence's part.

    length: its tokens when the last build began; ready: whether that build had read them all, so
    that a look-up makes sense; settled: how many of its tokens the cache was told.
    """

    cache: SSDCache = field(default_factory=lambda: SSDCache(SHADOW_CAPACITY))
    length: int = 0
    ready: bool = False
    settled: int = 0

    def settle(self, token_ids: Sequence[int]) -> None:
        """Tell the cache what was committed since."""
        self.cache.update(token_ids[self.settled :])
        self.settled = len(token_ids)


class Memories:
    """The memories of all sequences, by uid."""

    def __init__(self) -> None:
        self._of: dict[int, Memory] = {}

    def get(self, uid: int) -> Memory | None:
        """The memory of a sequence, if there is one."""
        return self._of.get(uid)

    def of(self, uid: int) -> Memory:
        """The memory of a sequence, made if there is none."""
        return self._of.setdefault(uid, Memory())

    def forget(self, uid: int) -> bool:
        """Drop a sequence's memory; whether there was one."""
        return self._of.pop(uid, None) is not None

    def recall(self, uid: int, k: int) -> Sequence[int]:
        """What the shadow tree of sequence `uid` knows to follow its settled tokens."""
        memory = self._of.get(uid)
        return memory.cache.propose(k) if memory else ()

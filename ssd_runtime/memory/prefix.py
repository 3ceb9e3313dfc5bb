"""Which blocks hold the beginnings of texts, for whoever begins alike.

A full block is known by its *digest*: a hash over its tokens and the digest of the block before it, and so
over every token from the first on. Equal digests mean equal beginnings: nobody can make two texts with the
same 256 bits of BLAKE2b. Nothing in a request changes its KV beside its tokens, so nothing else is hashed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

ROOT = b""
"""The digest before the first block."""
DIGEST_BYTES = 32


def block_digests(
    digests: list[bytes], token_ids: Sequence[int], block_size: int, num_blocks: int
) -> Iterator[bytes]:
    """The digests of the first `num_blocks` blocks of `token_ids`, one after another.

    Those in `digests` are known already, the others are appended as they are asked for.
    """
    yield from digests[:num_blocks]
    for start in range(len(digests) * block_size, num_blocks * block_size, block_size):
        tokens = array("q", token_ids[start : start + block_size])
        before = digests[-1] if digests else ROOT
        digests.append(blake2b(before + tokens, digest_size=DIGEST_BYTES).digest())
        yield digests[-1]


@dataclass(slots=True)
class PrefixStats:
    """Tokens that were looked for in a prefix cache, and those of them that were found."""

    queries: int = 0
    hits: int = 0

    def count(self, queries: int, hits: int) -> None:
        """One text was looked up."""
        self.queries += queries
        self.hits += hits


class PrefixIndex:
    """Blocks by digest; those that nobody holds (*idle*) in the order in which they were left.

    An idle block keeps its KV until somebody else needs the memory: then the one goes that was left first.
    """

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        """Blocks that nobody holds and somebody may find."""
        return len(self._idle)

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the first of `digests`, up to the first that is not known."""
        found: list[int] = []
        for digest in digests:
            if (block := self._blocks.get(digest)) is None:
                break
            found.append(block)
        return found

    def add(self, block: int, digest: bytes) -> None:
        """`block` can be found from now on, unless another with the same tokens can already."""
        if digest not in self._blocks:
            self._blocks[digest] = block
            self._digests[block] = digest

    def discard(self, block: int) -> bool:
        """Nobody finds `block` any more; whether it was idle, so that nothing is known of it now."""
        if (digest := self._digests.pop(block, None)) is not None:
            del self._blocks[digest]
        was_idle = block in self._idle
        self.hold(block)
        return was_idle

    def leave(self, block: int) -> bool:
        """Nobody holds `block` any more; whether it is kept, since it can be found."""
        if block not in self._digests:
            return False
        self._idle[block] = None
        return True

    def hold(self, block: int) -> None:
        """`block` is idle no longer, if it was."""
        self._idle.pop(block, None)

    def evict(self) -> int:
        """The block that was left first, of which nothing is known from now on."""
        block = next(iter(self._idle))
        self.discard(block)
        return block

    def check(self, held: Iterable[int]) -> set[int]:
        """Assert that both directions agree and that no idle block is in `held`; the idle blocks."""
        assert self._blocks == {digest: block for block, digest in self._digests.items()}
        idle = set(self._idle)
        assert idle <= self._digests.keys(), "a block is kept that nobody can find"
        assert idle.isdisjoint(held), "a block is held and cached at once"
        return idle

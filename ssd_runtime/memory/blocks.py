"""Which block of KV memory belongs to whom: ids, reference counts, digests, nothing else.

The manager never sees a sequence or a tensor. A *block table* is a list of block ids; position n
of its owner lies in block `table[n // block_size]`. A table may share its leading full blocks with
other tables; the block that its owner writes next is always its own.

Every block is *held* (in tables or by commands), *cached* (nobody holds it, but its text may be wanted
again) or *free*. Whoever needs memory gets free blocks first, then the cached one that was left first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ssd_runtime.memory.prefix import PrefixIndex
from ssd_runtime.messages import BlockCopy


class OutOfBlocks(Exception):
    """There are not enough free blocks; nothing was changed."""


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens each, counted by reference.

    Ownership: every table holds one reference on each of its blocks; a command in flight holds
    another (`pin`), so that a block it reads or writes cannot be given to anybody else.
    """

    def __init__(self, num_blocks: int, block_size: int, most_cached: int | None = None) -> None:
        """most_cached: blocks that are kept at most though nobody holds them; None: as many as there are.

        Free blocks are used again before untouched ones, so it also bounds how much memory becomes resident.
        """
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks
        self._prefixes = PrefixIndex()
        self._most_cached = num_blocks if most_cached is None else most_cached

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds, the cached ones among them."""
        return len(self._free) + self._prefixes.num_idle

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and `match` may find."""
        return self._prefixes.num_idle

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_grow(self, table: Sequence[int], num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self.blocks_for(num_tokens) - len(table) <= self.num_free

    def require(self, num_blocks: int) -> None:
        """Raise `OutOfBlocks` unless `num_blocks` are held by nobody."""
        if num_blocks > self.num_free:
            raise OutOfBlocks(f"{num_blocks} blocks wanted, {self.num_free} free of {self.num_blocks}")

    def num_held_by(self, tables: Iterable[Sequence[int]]) -> int:
        """Blocks that nobody would hold if these tables were dropped."""
        holding = Counter(block for table in tables for block in table)
        return sum(count == self._references[block] for block, count in holding.items())

    def grow(self, table: list[int], num_tokens: int) -> None:
        """Extend `table` to hold `num_tokens` tokens, or raise `OutOfBlocks` and change nothing."""
        missing = self.blocks_for(num_tokens) - len(table)
        self.require(missing)
        for _ in range(missing):
            block = self._free.pop() if self._free else self._prefixes.evict()
            self._references[block] = 1
            table.append(block)

    def match(self, digests: Iterable[bytes]) -> list[int]:
        """A table of the blocks that hold the longest known beginning of a text with these digests."""
        table = self._prefixes.find(digests)
        self.pin(table)
        return table

    def register(self, blocks: Sequence[int], digests: Sequence[bytes]) -> None:
        """Have `match` find `blocks`: held, full, of settled tokens, and never written again."""
        for block, digest in zip(blocks, digests, strict=True):
            self._prefixes.add(block, digest)

    def spoil(self, blocks: Iterable[int]) -> None:
        """Nobody shall find `blocks` any more: what they hold may be wrong."""
        for block in blocks:
            if self._prefixes.discard(block):
                self._free.append(block)

    def fork(self, table: Sequence[int], at: int) -> tuple[list[int], BlockCopy | None]:
        """A new table that holds the first `at` tokens of `table`.

        Full blocks before `at` are shared. The block that holds position `at` is copied, if any of
        its slots are before it; the caller has the copy carried out before the new table is used.
        Raises `OutOfBlocks` and changes nothing when the copy finds no block.
        """
        full, partial = divmod(at, self.block_size)
        forked = list(table[:full])
        if partial:
            self.grow(forked, at)
        self.pin(table[:full])
        return forked, BlockCopy(table[full], forked[full], partial) if partial else None

    def commit(self, table: list[int], branch: list[int]) -> None:
        """The branch becomes the trunk: `table` takes over the blocks of `branch`, which is emptied."""
        self.drop(table)
        table.extend(branch)
        branch.clear()

    def trim(self, table: list[int], num_tokens: int) -> BlockCopy | None:
        """Keep the first `num_tokens` tokens.

        The block that their owner writes next is replaced by a copy where it is shared, as `fork` does;
        where it is not, nobody finds it any more.
        """
        if num_tokens % self.block_size:
            last = table[num_tokens // self.block_size]
            if self._references[last] > 1:
                kept, copy = self.fork(table, num_tokens)
                self.commit(table, kept)
                return copy
            self._prefixes.discard(last)
        keep = self.blocks_for(num_tokens)
        self.unpin(reversed(table[keep:]))
        del table[keep:]
        return None

    def drop(self, table: list[int]) -> None:
        """Give back every block of `table` and empty it; of a text's cached blocks the last goes first."""
        self.unpin(reversed(table))
        table.clear()

    def pin(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each of `blocks`."""
        for block in blocks:
            self._references[block] += 1
            self._prefixes.hold(block)

    def unpin(self, blocks: Iterable[int]) -> None:
        """Give back one reference on each of `blocks`; the unreferenced ones become cached or free."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0 and not self._prefixes.leave(block):
                self._free.append(block)
        while self._prefixes.num_idle > self._most_cached:
            self._free.append(self._prefixes.evict())

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert that free + cached + held = total, and that `holders` (tables, pins) are all who hold."""
        expected = Counter(block for holder in holders for block in holder)
        held = {block: count for block, count in enumerate(self._references) if count}
        assert held == dict(expected), f"references {held} but holders have {dict(expected)}"
        cached, free = self._prefixes.check(held), set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        assert free.isdisjoint(held.keys() | cached), "a block is free and in use"
        total = len(free) + len(cached) + len(held)
        assert total == self.num_blocks, f"{total} blocks are free, cached or held, of {self.num_blocks}"

"""Which block of KV memory belongs to whom: ids, reference counts, nothing else.

The manager never sees a sequence or a tensor. A *block table* is a list of block ids; position n
of its owner lies in block `table[n // block_size]`. A table may share its leading full blocks with
other tables; the block that its owner writes next is always its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ssd_runtime.messages import BlockCopy


class OutOfBlocks(Exception):
    """There are not enough free blocks; nothing was changed."""


class BlockManager:
    """`num_blocks` blocks of `block_size` tokens each, counted by reference.

    Ownership: every table holds one reference on each of its blocks; a command in flight holds
    another (`pin`), so that a block it reads or writes cannot be given to anybody else.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks - 1, -1, -1))
        self._references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def can_grow(self, table: Sequence[int], num_tokens: int) -> bool:
        """Whether `grow` would succeed."""
        return self.blocks_for(num_tokens) - len(table) <= len(self._free)

    def require(self, num_blocks: int) -> None:
        """Raise `OutOfBlocks` unless `num_blocks` are free."""
        if num_blocks > len(self._free):
            raise OutOfBlocks(f"{num_blocks} blocks wanted, {len(self._free)} free of {self.num_blocks}")

    def grow(self, table: list[int], num_tokens: int) -> None:
        """Extend `table` to hold `num_tokens` tokens, or raise `OutOfBlocks` and change nothing."""
        missing = self.blocks_for(num_tokens) - len(table)
        self.require(missing)
        for _ in range(missing):
            block = self._free.pop()
            self._references[block] = 1
            table.append(block)

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

    def trim(self, table: list[int], num_tokens: int) -> None:
        """Give back the blocks past the first `num_tokens` tokens."""
        keep = self.blocks_for(num_tokens)
        self.unpin(table[keep:])
        del table[keep:]

    def drop(self, table: list[int]) -> None:
        """Give back every block of `table` and empty it."""
        self.trim(table, 0)

    def pin(self, blocks: Iterable[int]) -> None:
        """Take one more reference on each of `blocks`."""
        for block in blocks:
            self._references[block] += 1

    def unpin(self, blocks: Iterable[int]) -> None:
        """Give back one reference on each of `blocks`; the unreferenced ones become free."""
        for block in blocks:
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check(self, holders: Iterable[Sequence[int]]) -> None:
        """Assert that `holders` (tables and pins) account for every reference, and free for the rest."""
        expected = Counter(block for holder in holders for block in holder)
        held = {block: count for block, count in enumerate(self._references) if count}
        assert held == dict(expected), f"references {held} but holders have {dict(expected)}"
        assert len(self._free) + len(held) == self.num_blocks, "a block is neither free nor held"
        assert len(set(self._free)) == len(self._free), "a block is free twice"

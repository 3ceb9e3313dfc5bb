"""Block tables: whatever happens, every block is free or held, and nobody writes into another's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd_runtime.memory.blocks import BlockManager, OutOfBlocks

BLOCKS, SIZE = 12, 4


class Memory:
    """What the slots of every block hold: the model that tables are compared with."""

    def __init__(self) -> None:
        self.slots: dict[tuple[int, int], Any] = {}

    def write(self, table: list[int], position: int, value: Any) -> None:
        """Store `value` at a position of a table's owner."""
        self.slots[table[position // SIZE], position % SIZE] = value

    def read(self, table: list[int], length: int) -> list[Any]:
        """The first `length` positions."""
        return [self.slots[table[i // SIZE], i % SIZE] for i in range(length)]

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first slots of a block."""
        for slot in range(count):
            self.slots[target, slot] = self.slots[source, slot]


class BlockTables(RuleBasedStateMachine):
    """Owners that read, branch, commit and leave in any order; each remembers what it has written."""

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(BLOCKS, SIZE)
        self.memory = Memory()
        self.owners: list[tuple[list[int], list[Any]]] = []
        self.pins: list[list[int]] = []
        self.written = 0

    def owner(self, index: int) -> tuple[list[int], list[Any]]:
        return self.owners[index % len(self.owners)]

    def state(self) -> list[int]:
        return [self.manager.num_free, *(len(table) for table, _ in self.owners)]

    @rule()
    def begin(self) -> None:
        """A new owner, with an empty table."""
        if len(self.owners) < 6:
            self.owners.append(([], []))

    @precondition(lambda self: self.owners)
    @rule(index=st.integers(0, 5), count=st.integers(0, 9))
    def write(self, index: int, count: int) -> None:
        """Grow and write; without memory nothing changes."""
        table, values = self.owner(index)
        length = len(values) + count
        before = self.state()
        fits = self.manager.can_grow(table, length)
        try:
            self.manager.grow(table, length)
        except OutOfBlocks:
            assert not fits
            assert self.state() == before
            return
        assert fits
        for position in range(len(values), length):
            self.written += 1
            values.append(self.written)
            self.memory.write(table, position, self.written)

    @precondition(lambda self: self.owners)
    @rule(index=st.integers(0, 5), at=st.integers(0, 40))
    def fork(self, index: int, at: int) -> None:
        """Branch off; the copy is carried out at once, as the lanes do."""
        table, values = self.owner(index)
        at = min(at, len(values))
        before = self.state()
        try:
            forked, copy = self.manager.fork(table, at)
        except OutOfBlocks:
            assert self.state() == before
            return
        if copy is not None:
            self.memory.copy(copy.source, copy.target, copy.num_tokens)
        assert len(forked) == self.manager.blocks_for(at)
        self.owners.append((forked, values[:at]))

    @precondition(lambda self: len(self.owners) > 1)
    @rule(index=st.integers(0, 5), other=st.integers(0, 5))
    def commit(self, index: int, other: int) -> None:
        """One owner takes over what another has."""
        (table, values), (branch, theirs) = self.owner(index), self.owner(other)
        if table is not branch:
            self.manager.commit(table, branch)
            values[:] = theirs
            theirs.clear()
            assert branch == []

    @precondition(lambda self: self.owners)
    @rule(index=st.integers(0, 5), length=st.integers(0, 40))
    def trim(self, index: int, length: int) -> None:
        """Forget the last positions."""
        table, values = self.owner(index)
        length = min(length, len(values))
        before = self.state()
        try:
            copy = self.manager.trim(table, length)
        except OutOfBlocks:
            assert self.state() == before
            return
        if copy is not None:
            self.memory.copy(copy.source, copy.target, copy.num_tokens)
        del values[length:]

    @precondition(lambda self: self.owners)
    @rule(index=st.integers(0, 5))
    def end(self, index: int) -> None:
        """An owner leaves."""
        table, _ = self.owners.pop(index % len(self.owners))
        self.manager.drop(table)
        assert table == []

    @precondition(lambda self: self.owners)
    @rule(index=st.integers(0, 5))
    def pin(self, index: int) -> None:
        """A command in flight holds the blocks of a table."""
        table, _ = self.owner(index)
        self.pins.append(list(table))
        self.manager.pin(table)

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        """The command is done."""
        self.manager.unpin(self.pins.pop(0))

    @invariant()
    def the_books_balance(self) -> None:
        """Every reference has a holder, every other block is free once."""
        self.manager.check([*(table for table, _ in self.owners), *self.pins])

    @invariant()
    def everybody_reads_what_they_wrote(self) -> None:
        """No owner's positions were written by another."""
        for table, values in self.owners:
            assert self.memory.read(table, len(values)) == values


BlockTables.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestBlockTables = BlockTables.TestCase


def test_a_fork_shares_full_blocks_and_copies_the_one_in_use() -> None:
    """At 6 of 9 tokens in blocks of 4: block 0 is shared, two slots of block 1 are copied."""
    manager = BlockManager(8, 4)
    table: list[int] = []
    manager.grow(table, 9)
    forked, copy = manager.fork(table, 6)
    assert forked[0] == table[0]
    assert forked[1] not in table
    assert copy is not None
    assert (copy.source, copy.target, copy.num_tokens) == (table[1], forked[1], 2)


@pytest.mark.parametrize("at", [0, 4, 8])
def test_a_fork_at_a_border_copies_nothing(at: int) -> None:
    """Whole blocks are shared, and no block is taken."""
    manager = BlockManager(2, 4)
    table: list[int] = []
    manager.grow(table, 8)
    forked, copy = manager.fork(table, at)
    assert copy is None
    assert forked == table[: at // 4]


def test_a_pinned_block_is_given_to_nobody() -> None:
    """It becomes free when the command that reads it is done, not before."""
    manager = BlockManager(1, 4)
    table: list[int] = []
    manager.grow(table, 1)
    pinned = list(table)
    manager.pin(pinned)
    manager.drop(table)
    with pytest.raises(OutOfBlocks, match="1 blocks wanted, 0 free of 1"):
        manager.grow([], 1)
    manager.unpin(pinned)
    assert manager.can_grow([], 4)


def test_a_trimmed_table_never_writes_into_a_block_that_others_read() -> None:
    """At 6 of 8 tokens, the second block shared: it is copied, as for a fork."""
    manager = BlockManager(3, 4)
    table: list[int] = []
    manager.grow(table, 8)
    shared, _ = manager.fork(table, 8)
    copy = manager.trim(table, 6)
    assert copy is not None
    assert (copy.source, copy.target, copy.num_tokens) == (shared[1], table[1], 2)
    assert table[0] == shared[0]
    with pytest.raises(OutOfBlocks):
        manager.trim(shared, 2)


def test_the_check_notices_a_lost_block() -> None:
    """A table that nobody names is found."""
    manager = BlockManager(2, 4)
    manager.grow([], 1)
    with pytest.raises(AssertionError, match="holders"):
        manager.check([])

"""The prefix cache: what is found is the same beginning, and memory that is needed is given up in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ssd_runtime.memory.blocks import BlockManager, OutOfBlocks
from ssd_runtime.memory.prefix import PrefixStats, block_digests
from ssd_runtime.messages import BlockCopy

BLOCKS, SIZE = 10, 3
indices = st.integers(0, 9)
texts = st.lists(st.integers(0, 1), max_size=12)


def digests(token_ids: list[int], size: int = SIZE) -> list[bytes]:
    return list(block_digests([], token_ids, size, len(token_ids) // size))


class Owner:
    """A text, where its KV lies, and how many of its blocks are registered."""

    def __init__(self, table: list[int], text: list[int], num_registered: int) -> None:
        self.table = table
        self.text = text
        self.num_registered = num_registered


class PrefixCache(RuleBasedStateMachine):
    """Owners that match, read, branch, settle, cut and leave in any order.

    The KV of a position is the text up to it: what a block should hold is known from the text alone. The
    naive model of the cache: texts with their blocks, and the blocks that were left, in that order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.manager = BlockManager(BLOCKS, SIZE)
        self.slots: dict[tuple[int, int], Any] = {}
        self.owners: list[Owner] = []
        self.pins: list[list[int]] = []
        self.known: dict[tuple[int, ...], int] = {}
        self.idle: list[int] = []

    def owner(self, index: int) -> Owner:
        return self.owners[index % len(self.owners)]

    def held(self) -> set[int]:
        return {block for table in self.holders() for block in table}

    def holders(self) -> list[list[int]]:
        return [*(owner.table for owner in self.owners), *self.pins]

    def left(self, before: list[int]) -> None:
        """The blocks of `before` that nobody holds now are kept if somebody may find them, the last first."""
        gone = [block for block in reversed(before) if block not in self.held() | set(self.idle)]
        self.idle += [block for block in gone if block in self.known.values()]

    def give(self, count: int) -> bool:
        """Hand out blocks: free ones, then cached ones in the order in which they were left; all or none."""
        free = BLOCKS - len(self.held()) - len(self.idle)
        if count > free + len(self.idle):
            return False
        self.forget(self.idle[: max(0, count - free)])
        return True

    def forget(self, blocks: list[int]) -> None:
        """Nobody finds these blocks any more."""
        self.known = {text: block for text, block in self.known.items() if block not in blocks}
        self.idle = [block for block in self.idle if block not in blocks]

    def copy(self, copy: BlockCopy | None) -> None:
        """What the lanes do with a copy."""
        if copy is not None:
            for slot in range(copy.num_tokens):
                self.slots[copy.target, slot] = self.slots[copy.source, slot]

    def write(self, owner: Owner, token_ids: list[int]) -> None:
        """Append, as a pass does; without memory nothing changes."""
        length = len(owner.text) + len(token_ids)
        if not self.give(self.manager.blocks_for(length) - len(owner.table)):
            with pytest.raises(OutOfBlocks):
                self.manager.grow(owner.table, length)
            return
        self.manager.grow(owner.table, length)
        for token in token_ids:
            position = len(owner.text)
            owner.text.append(token)
            self.slots[owner.table[position // SIZE], position % SIZE] = tuple(owner.text)

    @precondition(lambda self: len(self.owners) < 5)
    @rule(text=texts.filter(bool))
    def begin(self, text: list[int]) -> None:
        """A new owner starts with the longest beginning that is known, and reads the rest."""
        usable = (len(text) - 1) // SIZE
        expected: list[int] = []
        for n in range(1, usable + 1):
            block = self.known.get(tuple(text[: n * SIZE]))
            if block is None:
                break
            expected.append(block)
        table = self.manager.match(digests(text)[:usable])
        assert table == expected
        self.idle = [block for block in self.idle if block not in table]
        owner = Owner(table, text[: len(table) * SIZE], len(table))
        self.owners.append(owner)
        self.write(owner, text[len(owner.text) :])

    @precondition(lambda self: self.owners)
    @rule(index=indices, more=texts)
    def read(self, index: int, more: list[int]) -> None:
        """More tokens, settled or not."""
        self.write(self.owner(index), more)

    @precondition(lambda self: self.owners)
    @rule(index=indices)
    def settle(self, index: int) -> None:
        """All that was read is right: the full blocks are registered."""
        owner = self.owner(index)
        full, new = len(owner.text) // SIZE, owner.num_registered
        self.manager.register(owner.table[new:full], digests(owner.text)[new:full])
        for n in range(new, full):
            self.known.setdefault(tuple(owner.text[: (n + 1) * SIZE]), owner.table[n])
        owner.num_registered = full

    @precondition(lambda self: 0 < len(self.owners) < 5)
    @rule(index=indices, at=st.integers(0, 30))
    def fork(self, index: int, at: int) -> None:
        """Branch off; the copy is carried out at once."""
        owner = self.owner(index)
        at = min(at, len(owner.text))
        if not self.give(1 if at % SIZE else 0):
            with pytest.raises(OutOfBlocks):
                self.manager.fork(owner.table, at)
            return
        forked, copy = self.manager.fork(owner.table, at)
        self.copy(copy)
        self.owners.append(Owner(forked, owner.text[:at], min(owner.num_registered, at // SIZE)))

    @precondition(lambda self: len(self.owners) > 1)
    @rule(index=indices, other=indices)
    def commit(self, index: int, other: int) -> None:
        """A branch takes the place of another owner."""
        trunk, branch = self.owner(index), self.owner(other)
        if trunk is branch:
            return
        before = list(trunk.table)
        self.manager.commit(trunk.table, branch.table)
        self.owners.remove(branch)
        trunk.text, trunk.num_registered = branch.text, branch.num_registered
        self.left(before)

    @precondition(lambda self: self.owners)
    @rule(index=indices, length=st.integers(0, 30))
    def trim(self, index: int, length: int) -> None:
        """The last tokens were wrong, registered or not: they go, and nobody else loses any."""
        owner = self.owner(index)
        length = min(length, len(owner.text))
        before = list(owner.table)
        last = owner.table[length // SIZE] if length % SIZE else None
        shared = last is not None and sum(table.count(last) for table in self.holders()) > 1
        if shared and not self.give(1):
            with pytest.raises(OutOfBlocks):
                self.manager.trim(owner.table, length)
            return
        copy = self.manager.trim(owner.table, length)
        assert (copy is not None) == shared
        self.copy(copy)
        if last is not None and not shared:
            self.forget([last])
        del owner.text[length:]
        owner.num_registered = min(owner.num_registered, length // SIZE)
        self.left(before)

    @precondition(lambda self: self.owners)
    @rule(index=indices)
    def end(self, index: int) -> None:
        """An owner leaves; what it registered stays until its memory is needed."""
        owner = self.owners.pop(index % len(self.owners))
        before = list(owner.table)
        self.manager.drop(owner.table)
        self.left(before)

    @precondition(lambda self: self.owners)
    @rule(index=indices)
    def spoil(self, index: int) -> None:
        """What an owner has read may be wrong: nobody finds it."""
        owner = self.owner(index)
        self.manager.spoil(owner.table)
        self.forget(owner.table)

    @precondition(lambda self: self.owners)
    @rule(index=indices)
    def pin(self, index: int) -> None:
        """A command in flight holds the blocks of a table."""
        self.pins.append(list(self.owner(index).table))
        self.manager.pin(self.pins[-1])

    @precondition(lambda self: self.pins)
    @rule()
    def unpin(self) -> None:
        """The command is done."""
        pinned = self.pins.pop(0)
        self.manager.unpin(reversed(pinned))
        self.left(pinned)

    @invariant()
    def the_books_balance(self) -> None:
        """Every block is free, cached or held, and the cached ones are those of the naive model."""
        self.manager.check(self.holders())
        assert self.manager.num_cached == len(self.idle)
        assert self.manager.num_free == BLOCKS - len(self.held())

    @invariant()
    def everybody_reads_their_own_text(self) -> None:
        """Shared, copied, found again: each position holds what its owner's text says."""
        for owner in self.owners:
            for i in range(len(owner.text)):
                assert self.slots[owner.table[i // SIZE], i % SIZE] == tuple(owner.text[: i + 1])

    @invariant()
    def what_is_known_is_there(self) -> None:
        """A known block holds its text still, whatever became of its owner."""
        for text, block in self.known.items():
            start = len(text) - SIZE
            assert [self.slots[block, i] for i in range(SIZE)] == [text[: start + i + 1] for i in range(SIZE)]


PrefixCache.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPrefixCache = PrefixCache.TestCase


@given(texts, texts)
def test_digests_are_equal_exactly_where_all_tokens_before_are(a: list[int], b: list[int]) -> None:
    """Block by block, against comparing the texts themselves."""
    same = [a[: (n + 1) * SIZE] == b[: (n + 1) * SIZE] for n in range(min(len(a), len(b)) // SIZE)]
    assert [one == other for one, other in zip(digests(a), digests(b), strict=False)] == same


@given(texts, st.integers(0, 4))
def test_digests_may_be_worked_out_in_pieces(text: list[int], known: int) -> None:
    """As a text grows; the known ones are not changed."""
    made = digests(text)[:known]
    assert list(block_digests(made, text, SIZE, len(text) // SIZE)) == digests(text) == made


def test_no_more_digests_are_worked_out_than_are_asked_for() -> None:
    """A text that nobody has begun costs one block's digest, however long it is."""
    made: list[bytes] = []
    assert BlockManager(4, 4).match(block_digests(made, range(4000), 4, 1000)) == []
    assert len(made) == 1


@pytest.mark.parametrize(("taken", "kept"), [(0, (2, 2)), (1, (1, 2)), (2, (0, 2)), (3, (0, 1)), (4, (0, 0))])
def test_the_block_that_was_left_first_is_given_up_first_and_of_one_text_the_last(
    taken: int, kept: tuple[int, int]
) -> None:
    """So that a beginning outlives what follows it, and who was here lately finds most."""
    manager = BlockManager(4, 1)
    for text in ([1, 2], [3, 4]):
        table: list[int] = []
        manager.grow(table, 2)
        manager.register(table, digests(text, 1))
        manager.drop(table)
    manager.grow([], taken)
    assert tuple(len(manager.match(digests(text, 1))) for text in ([1, 2], [3, 4])) == kept


def test_no_more_is_kept_than_is_allowed_and_no_other_memory_touched_for_it() -> None:
    """What is above it goes, oldest first, and its blocks are the next to be used."""
    manager, used = BlockManager(100, 2, most_cached=6), set[int]()
    for text in range(50):
        table: list[int] = []
        manager.grow(table, 8)
        used |= set(table)
        manager.register(table, digests([text] * 8, 2))
        manager.drop(table)
        assert manager.num_cached == min(6, 4 * (text + 1))
        found = manager.match(digests([text] * 8, 2))
        assert len(found) == 4
        manager.drop(found)
    assert len(used) <= 6 + 4
    manager.check([])


def test_under_pressure_nobody_loses_a_block_that_is_held() -> None:
    """Found blocks are held like any others: there is memory for nobody else."""
    manager = BlockManager(2, 2)
    first: list[int] = []
    manager.grow(first, 4)
    manager.register(first, digests([1, 2, 3, 4], 2))
    again = manager.match(digests([1, 2, 3, 4], 2))
    manager.drop(first)
    with pytest.raises(OutOfBlocks, match="1 blocks wanted, 0 free of 2"):
        manager.grow([], 1)
    manager.drop(again)
    assert (manager.num_free, manager.num_cached) == (2, 2)


def test_the_first_of_two_equal_blocks_is_the_one_that_is_found() -> None:
    """Two that read the same text at once keep their own; the second becomes free when it is left."""
    manager = BlockManager(2, 2)
    tables: list[list[int]] = [[], []]
    for table in tables:
        manager.grow(table, 2)
        manager.register(table, digests([1, 2], 2))
    assert manager.match(digests([1, 2], 2)) == tables[0]
    manager.drop(tables[1])
    assert (manager.num_free, manager.num_cached) == (1, 0)


def test_the_check_notices_a_block_that_is_cached_and_held() -> None:
    """Two owners of one block is the worst that can happen here."""
    manager = BlockManager(1, 2)
    table: list[int] = []
    manager.grow(table, 2)
    manager.register(table, digests([1, 2], 2))
    manager._prefixes.leave(table[0])
    with pytest.raises(AssertionError, match="held and cached"):
        manager.check([table])


def test_hits_and_queries_are_counted_in_tokens() -> None:
    """As vLLM counts them."""
    stats = PrefixStats()
    stats.count(10, 8)
    stats.count(5, 0)
    assert (stats.queries, stats.hits) == (15, 8)

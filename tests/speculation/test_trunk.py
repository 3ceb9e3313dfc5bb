"""The trunk has read exactly what it shares with the committed tokens, whatever happened before."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_runtime.memory.blocks import BlockManager, OutOfBlocks
from ssd_runtime.speculation.model_draft import Feed
from ssd_runtime.speculation.trunk import Path, Trunk, common_prefix
from ssd_runtime.testing.rig import decoder_draft
from ssd_runtime.testing.scripted import ReadState, ScriptedDraft, surely
from ssd_runtime.testing.toy import toy_decoder

tokens = st.integers(1, 3)
texts = st.lists(tokens, min_size=1, max_size=12)


def draft(capacity: int | None = None) -> ScriptedDraft:
    return ScriptedDraft(lambda token_ids: surely(1), capacity=capacity)


def read(model: ScriptedDraft, path: Path, token_ids: list[int]) -> None:
    """Feed a path, and note it as a line does."""
    model.extend([Feed(path.state, token_ids, 0)])
    path.read.extend(token_ids)


def seen(path: Path) -> list[int]:
    """What the draft itself knows of a path."""
    assert isinstance(path.state, ReadState)
    return path.state.token_ids


@given(*[st.lists(tokens, max_size=40)] * 3)
def test_the_common_prefix_is_the_naive_one(begin: list[int], a: list[int], b: list[int]) -> None:
    """The same as comparing token by token."""
    a, b = begin + a, begin + b
    naive = 0
    while naive < min(len(a), len(b)) and a[naive] == b[naive]:
        naive += 1
    assert common_prefix(a, b) == naive


@settings(deadline=None, max_examples=200)
@given(texts, st.data())
def test_after_any_build_and_any_tokens_the_trunk_has_read_the_longest_common_prefix(
    text: list[int], data: st.DataObject
) -> None:
    """Rounds of: align, read, branch anywhere, read anything on the branches, then other tokens come."""
    model = draft()
    trunk = Trunk(model)
    for _ in range(data.draw(st.integers(1, 4))):
        known = [seen(path) for path in (trunk.path, *trunk._branches)]
        best = max(common_prefix(path, text) for path in known)
        missing = trunk.align(list(text))
        assert seen(trunk.path) == text[: min(best, len(text) - 1)]
        assert missing == text[len(seen(trunk.path)) :]
        assert len(model.states) == 1
        read(model, trunk.path, missing)
        for _ in range(data.draw(st.integers(0, 3))):
            branch = trunk.fork(data.draw(st.integers(0, len(text))))
            if extra := data.draw(st.lists(tokens, max_size=3)):
                read(model, branch, extra)
        text = (
            data.draw(st.sampled_from(known)) + data.draw(texts)
            if data.draw(st.booleans())
            else data.draw(texts)
        )
    trunk.drop()
    assert seen(trunk.path) == []
    assert model.states == set()


def test_the_branch_that_happened_becomes_the_trunk_without_being_read_again() -> None:
    """A hit: only what follows the branch is left to read."""
    model = draft()
    trunk = Trunk(model)
    read(model, trunk.path, trunk.align([1, 2, 3]))
    lost, won = trunk.fork(3), trunk.fork(2)
    read(model, lost, [9, 9])
    read(model, won, [7, 8])
    passes = len(model.passes)
    assert trunk.align([1, 2, 7, 8, 5]) == [5]
    assert seen(trunk.path) == [1, 2, 7, 8]
    assert len(model.passes) == passes


def test_a_trunk_of_a_real_model_keeps_the_blocks_of_its_tokens_only() -> None:
    """Adopted, cut and dropped, the draft's books balance."""
    model = decoder_draft(toy_decoder(3), num_blocks=16, block_size=2)
    blocks: BlockManager = model.blocks
    trunk = Trunk(model)
    for text in ([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 9, 7, 7, 7], [4]):
        missing = trunk.align(text)
        model.extend([Feed(trunk.path.state, missing, 1)])
        trunk.path.read.extend(missing)
        branch = trunk.fork(len(text) - 1)
        model.extend([Feed(branch.state, [7, 7], 1)])
        branch.read.extend([7, 7])
        blocks.check([trunk.path.state.table, branch.state.table])
    trunk.drop()
    assert blocks.num_free == 16


def test_a_cut_that_finds_no_memory_forgets_the_trunk() -> None:
    """Nothing is half there: the next align starts from nothing."""
    model = draft(capacity=9)
    trunk = Trunk(model)
    read(model, trunk.path, trunk.align([1, 2, 3, 4, 5, 6]))
    with pytest.raises(OutOfBlocks):
        trunk.align([1, 2, 3, 4, 9])
    assert trunk.align([1, 2, 3]) == [1, 2, 3]
    assert model.num_tokens == 0

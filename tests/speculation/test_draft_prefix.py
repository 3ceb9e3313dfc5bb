"""The draft's prefix cache: a new trunk starts with what was read before; only settled tokens are kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.prefix import block_digests
from ssd_runtime.messages import Draw, StopWord
from ssd_runtime.speculation.commands import BuildCommand, BuildResult, DraftRow, ForgetCommand
from ssd_runtime.speculation.model_draft import DecoderDraft, Feed, RememberingDraft
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.speculation.trunk import Trunk
from ssd_runtime.testing.rig import decoder_draft, draft_worker
from ssd_runtime.testing.scripted import ScriptedDraft, surely
from ssd_runtime.testing.toy import toy_decoder

MODEL = toy_decoder(3)
SIZE = 2
GREEDY = Draw(0, 0.0)
tokens = st.integers(1, 2)
texts = st.lists(tokens, min_size=1, max_size=9)


def remembering(num_blocks: int = 64) -> DecoderDraft:
    return decoder_draft(MODEL, num_blocks, SIZE)


def known(draft: DecoderDraft, text: list[int]) -> int:
    """How many tokens of `text` the draft would not read again."""
    state = draft.recall(text)
    length = state.length
    draft.drop(state)
    return length


def read(draft: DecoderDraft, trunk: Trunk, text: list[int], num_settled: int) -> int:
    """Align and read what is missing; how much that was."""
    missing = trunk.align(list(text), num_settled)
    draft.extend([Feed(trunk.path.state, missing, 1)])
    trunk.path.read.extend(missing)
    return len(missing)


def test_a_new_trunk_reads_only_what_nobody_has_read() -> None:
    """Of 7 tokens in blocks of 2 six are kept; the last token is always read."""
    draft = remembering()
    first = Trunk(draft)
    assert read(draft, first, [1, 2, 3, 4, 5, 6, 7], 7) == 7
    first.drop()
    assert read(draft, Trunk(draft), [1, 2, 3, 4, 5, 6, 8, 9], 8) == 2
    assert read(draft, Trunk(draft), [1, 2, 3, 4], 4) == 2
    assert draft.prefix_stats is not None
    assert (draft.prefix_stats.queries, draft.prefix_stats.hits) == (6 + 7 + 3, 0 + 6 + 2)


def test_what_it_starts_with_gives_the_same_logits_to_the_last_bit() -> None:
    """Found or read: the draft's own numbers do not change."""
    text = [5, 6, 7, 8, 9, 10, 11]
    logits = []
    draft = remembering()
    for _ in range(2):
        trunk = Trunk(draft)
        logits.append(draft.extend([Feed(trunk.path.state, trunk.align(list(text), 7), 1)]))
        trunk.path.read.extend(text[trunk.path.state.length - 1 :])
        trunk.drop()
    assert logits[0].equal(logits[1])


def test_a_token_under_verification_is_not_kept_until_it_is_settled() -> None:
    """Tokens 3 and 4 are a proposal; with the next build the first of them has turned out right."""
    draft = remembering()
    trunk = Trunk(draft)
    read(draft, trunk, [1, 2, 3, 4], 2)
    trunk.align([1, 2, 3, 9], 4)
    assert known(draft, [1, 2, 3, 4]) == 2
    read(draft, trunk, [1, 2, 3, 9, 5], 5)
    trunk.drop()
    assert known(draft, [1, 2, 3, 9, 5]) == 4


def test_a_proposal_that_somebody_else_has_said_is_found_and_taken_back_like_any_other() -> None:
    """Tokens 3 to 6 are known, but here they are a proposal; what comes instead is kept as what it is."""
    draft = remembering()
    first, second = Trunk(draft), Trunk(draft)
    read(draft, first, [1, 2, 3, 4, 5, 6, 7], 7)
    first.drop()
    assert read(draft, second, [1, 2, 3, 4, 5, 6, 9], 2) == 1
    assert read(draft, second, [1, 2, 8, 8, 8, 8, 8], 7) == 5
    second.drop()
    assert known(draft, [1, 2, 8, 8, 8, 8, 8]) == 6
    assert known(draft, [1, 2, 3, 4, 5, 6, 7]) == 6


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_read_branched_and_thrown_away_only_settled_texts_are_kept(data: st.DataObject) -> None:
    """Three trunks in little memory: what each finds are beginnings of texts that somebody has settled."""
    draft = remembering(num_blocks=24)
    blocks: BlockManager = draft.blocks
    trunks = [Trunk(draft) for _ in range(3)]
    settled: list[list[int]] = [[1], [2], [1, 2]]
    allowed: set[bytes] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, 2))
        trunk, text = trunks[index], settled[index]
        if data.draw(st.booleans()) and data.draw(st.booleans()):
            trunk.drop()
            settled[index] = text = data.draw(texts)
        sent = data.draw(st.lists(tokens, max_size=3))
        read(draft, trunk, text + sent, len(text))
        for _ in range(data.draw(st.integers(0, 2))):
            branch = trunk.fork(data.draw(st.integers(len(text), len(text) + len(sent))))
            extra = data.draw(st.lists(tokens, min_size=1, max_size=3))
            draft.extend([Feed(branch.state, extra, 1)])
            branch.read.extend(extra)
        allowed |= set(block_digests([], text, SIZE, len(text) // SIZE))
        held = [path.state.table for each in trunks for path in (each.path, *each._branches)]
        blocks.check(held)
        assert set(blocks._prefixes._blocks) <= allowed
        settled[index] = (
            text + data.draw(st.sampled_from([sent[:i] for i in range(len(sent) + 1)])) + [data.draw(tokens)]
        )
    for trunk in trunks:
        trunk.drop()
    blocks.check([])
    assert blocks.num_free == 24


def test_a_build_of_a_second_turn_feeds_only_what_is_new() -> None:
    """On the worker: the first request is forgotten, another begins alike, and its build has less to read."""
    draft = remembering(256)
    worker = draft_worker(draft)

    def fed(uid: int, text: tuple[int, ...]) -> int:
        command = BuildCommand((DraftRow(uid, text, GREEDY, 4, 100),), StopWord())
        result = worker.execute(command)
        assert isinstance(result, BuildResult)
        return result.steps[0].tokens

    text = tuple(range(1, 30))
    assert fed(1, text) == 29
    worker.execute(ForgetCommand((1,)))
    draft.blocks.check([])
    assert fed(2, (*text, 5, 6)) == 31 - 28
    assert fed(3, text) == 29 - 28


def test_a_proposal_that_was_rejected_leaves_nothing_behind() -> None:
    """The worker is told what was sent, and then that other tokens came."""
    draft = remembering()
    worker = draft_worker(draft)
    for text, sent in (((1, 2, 3), (7, 8, 9)), ((1, 2, 3, 7, 5), ())):
        row = DraftRow(1, text, GREEDY, 4, 100, proposal=Proposal(sent), budget=2)
        worker.execute(BuildCommand((row,), StopWord()))
    worker.execute(ForgetCommand((1,)))
    assert known(draft, [1, 2, 3, 7, 8, 9]) == 4
    assert known(draft, [1, 2, 3, 7, 5, 5]) == 4
    draft.blocks.check([])


def test_a_block_that_nobody_holds_is_noticed_when_the_last_sequence_is_forgotten() -> None:
    """As long as there are others it is theirs to hold."""
    draft = remembering()
    worker = draft_worker(draft)
    rows = tuple(DraftRow(uid, (1, 2, 3), GREEDY, 4, 100) for uid in (1, 2))
    worker.execute(BuildCommand(rows, StopWord()))
    draft.blocks.grow([], 1)
    worker.execute(ForgetCommand((1,)))
    with pytest.raises(AssertionError, match="holders"):
        worker.execute(ForgetCommand((2,)))


def test_a_draft_without_a_prefix_cache_reads_everything() -> None:
    """A plugin's draft has five verbs and need not have more."""
    scripted = ScriptedDraft(lambda token_ids: surely(1))
    assert not isinstance(scripted, RememberingDraft)
    trunk = Trunk(scripted)
    scripted.extend([Feed(trunk.path.state, trunk.align([1, 2, 3], 3), 1)])
    trunk.path.read.extend([1, 2, 3])
    trunk.drop()
    assert Trunk(scripted).align([1, 2, 3], 3) == [1, 2, 3]


@pytest.mark.parametrize("num_blocks", [4])
def test_kept_blocks_are_given_up_before_a_draft_is_out_of_memory(num_blocks: int) -> None:
    """Another text of the pool's size is read as if nothing had been kept."""
    draft = remembering(num_blocks)
    for text in ([1, 2, 3, 4, 5, 6, 7], [9, 8, 7, 6, 5, 4, 3]):
        trunk = Trunk(draft)
        assert read(draft, trunk, text, 7) == 7
        trunk.drop()

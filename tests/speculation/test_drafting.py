"""The draft's worker: drafts, anytime builds, and what it keeps between commands."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ssd_runtime.messages import Draw, Rules, StopWord
from ssd_runtime.speculation.commands import (
    Branch,
    BuildCommand,
    BuildResult,
    DraftCommand,
    DraftRow,
    ForgetCommand,
)
from ssd_runtime.speculation.lines import READ_CHUNK
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.testing.rig import draft_worker
from ssd_runtime.testing.scripted import (
    VOCAB,
    CountedStop,
    ScriptedDraft,
    continuing,
    faltering,
    surely,
    unusable,
)

GREEDY = Draw(0, 0.0)
COUNT = tuple(range(1, 40))
"""The text that drafts continue: after token n comes n + 1."""


def successor(token_ids: Sequence[int]) -> Tensor:
    """After token n comes n + 1, else n + 2, else n + 3, and so on."""
    logits = torch.arange(VOCAB, 0, -1, dtype=torch.float32)
    return logits.roll(token_ids[-1] + 1)


def row(
    length: int = 4,
    committed: int = 3,
    sent: Sequence[int] = (),
    budget: int = 0,
    max_len: int = 100,
    uid: int = 1,
) -> DraftRow:
    """Tokens 1 to `committed`, and `sent` under verification."""
    return DraftRow(
        uid, COUNT[:committed], GREEDY, length, max_len, proposal=Proposal(tuple(sent)), budget=budget
    )


def never() -> StopWord:
    return StopWord()


def outcomes(result: BuildResult, index: int = 0) -> dict[tuple[int, int], tuple[int, ...]]:
    branches = result.rows[index]
    assert branches is not None
    return {(branch.accepted, branch.bonus): branch.proposal.token_ids for branch in branches}


def test_a_draft_continues_what_is_committed() -> None:
    """`length` tokens, each with its guess."""
    [proposal] = draft_worker(ScriptedDraft(successor)).execute(DraftCommand((row(),), never()))
    assert proposal.token_ids == (4, 5, 6, 7)
    assert [guess.candidates[:2] for guess in proposal.guesses] == [(4, 5), (5, 6), (6, 7), (7, 8)]
    assert {guess.margin for guess in proposal.guesses} == {1.0}


@pytest.mark.parametrize(("looks", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (9, 4)])
def test_a_stopped_draft_gives_what_it_has(looks: int, expected: int) -> None:
    """A look before every pass; the first one reads the prompt and gives the first token."""
    worker = draft_worker(ScriptedDraft(successor))
    [proposal] = worker.execute(DraftCommand((row(),), CountedStop(looks)))
    assert proposal.token_ids == (4, 5, 6, 7)[:expected]


def test_a_draft_ends_at_an_end_token_and_before_the_last_place() -> None:
    """Nothing is drafted behind EOS, and the bonus keeps its place."""
    worker = draft_worker(ScriptedDraft(successor))
    ending = DraftRow(1, COUNT[:3], GREEDY, 4, 100, end_ids=frozenset({5}))
    [proposal] = worker.execute(DraftCommand((ending,), never()))
    assert proposal.token_ids == (4, 5)
    [proposal] = worker.execute(DraftCommand((row(max_len=6, uid=2),), never()))
    assert proposal.token_ids == (4, 5)
    [proposal] = worker.execute(DraftCommand((row(max_len=4, uid=3),), never()))
    assert proposal.token_ids == ()


def test_rows_are_drafted_together() -> None:
    """One pass of the model for all rows, each as deep as it wants."""
    draft = ScriptedDraft(successor)
    rows = (row(uid=1, length=1), row(uid=2, length=4, committed=9), row(uid=3, length=2))
    proposals = draft_worker(draft).execute(DraftCommand(rows, never()))
    assert [proposal.token_ids for proposal in proposals] == [(4,), (10, 11, 12, 13), (4, 5)]
    assert [len(feeds) for feeds in draft.passes] == [3, 2, 1, 1]


def test_what_was_read_is_not_read_again() -> None:
    """After a draft of 4 of which 2 were right and a new token came, one token is left to read."""
    draft = ScriptedDraft(successor)
    worker = draft_worker(draft)
    worker.execute(DraftCommand((row(),), never()))
    text = (*COUNT[:5], 50)
    before = len(draft.passes)
    worker.execute(DraftCommand((DraftRow(1, text, GREEDY, 1, 100),), never()))
    assert [tuple(feed.token_ids) for feed in draft.passes[before]] == [(50,)]


def test_a_long_prompt_is_read_in_chunks_over_several_commands() -> None:
    """A stop word ends the reading after a chunk, and the next command goes on from there."""
    text = [n % 30 + 1 for n in range(3 * READ_CHUNK)]
    draft = ScriptedDraft(successor)
    worker = draft_worker(draft)
    long = DraftRow(1, tuple(text), GREEDY, 2, 1000)
    assert worker.execute(DraftCommand((long,), CountedStop(2))) == [NOTHING]
    [proposal] = worker.execute(DraftCommand((long,), never()))
    assert proposal.token_ids == (text[-1] + 1, text[-1] + 2)
    assert [sum(len(feed.token_ids) for feed in feeds) for feeds in draft.passes] == [READ_CHUNK] * 3 + [1]


def test_a_build_prepares_the_likeliest_bonuses_after_every_accepted_length() -> None:
    """Budget 6 over 0, 1, 2 accepted: two each; the sent token is no bonus where it would be accepted."""
    result = draft_worker(ScriptedDraft(successor)).execute(
        BuildCommand((row(length=2, sent=(4, 5), budget=6),), never())
    )
    assert outcomes(result) == {
        (0, 5): (6, 7),
        (0, 6): (7, 8),
        (1, 6): (7, 8),
        (1, 7): (8, 9),
        (2, 6): (7, 8),
        (2, 7): (8, 9),
    }


def test_the_sent_token_is_excluded_only_where_it_could_be_rejected() -> None:
    """After all of a proposal was accepted, the draft's own next token is the likeliest bonus."""
    result = draft_worker(ScriptedDraft(successor)).execute(
        BuildCommand((row(length=1, sent=(20,), budget=2),), never())
    )
    assert outcomes(result) == {(0, 4): (5,), (1, 21): (22,)}


@pytest.mark.parametrize("depth", range(6))
def test_a_build_stopped_after_d_passes_of_branches_has_proposals_of_length_d(depth: int) -> None:
    """The pass that reads what was sent comes first; K is 4."""
    draft = ScriptedDraft(successor)
    command = BuildCommand((row(sent=(4, 5), budget=6),), CountedStop(depth + 1))
    result = draft_worker(draft).execute(command)
    branches = result.rows[0]
    assert branches is not None
    assert {len(branch.proposal.token_ids) for branch in branches} == ({min(depth, 4)} if depth else set())
    assert len(draft.passes) == 1 + min(depth, 4) == len(result.steps)


def test_a_build_stopped_before_its_first_pass_is_not_ready() -> None:
    """None, not nothing prepared: the row made no look-up, so it cannot miss."""
    result = draft_worker(ScriptedDraft(successor)).execute(
        BuildCommand((row(sent=(4, 5), budget=6),), CountedStop(0))
    )
    assert result == BuildResult((None,))


def test_a_build_opens_its_branches_at_once_where_the_guesses_are_known() -> None:
    """The own proposal of the round before carries its guesses: no pass is lost."""
    draft = ScriptedDraft(successor)
    worker = draft_worker(draft)
    [proposal] = worker.execute(DraftCommand((row(),), never()))
    before = len(draft.passes)
    build = DraftRow(1, COUNT[:3], GREEDY, 4, 100, proposal=proposal, budget=5)
    worker.execute(BuildCommand((build,), CountedStop(1)))
    first = draft.passes[before]
    assert [tuple(feed.token_ids) for feed in first] == [(7,), (5,), (6,), (7,), (8,)]


def test_a_branchs_rules_see_the_text_that_the_branch_is_for() -> None:
    """Without what was sent behind the place where it leaves: 9, 4 and 4 never come before its 5."""
    ruled = Draw(0, 0.0, rules=Rules(3, bad_words=((9, 4, 4, 5),)))
    asked = DraftRow(1, COUNT[:3], ruled, 4, 100, proposal=Proposal((9, 4)), budget=9)
    prepared = outcomes(draft_worker(ScriptedDraft(successor)).execute(BuildCommand((asked,), never())))
    assert prepared[0, 4] == (5, 6, 7, 8)


def test_the_branch_that_happened_is_continued_without_reading_it_again() -> None:
    """After a hit only the last token of the proposal is missing."""
    draft = ScriptedDraft(successor)
    worker = draft_worker(draft)
    result = worker.execute(BuildCommand((row(sent=(4, 9), budget=3),), never()))
    assert (1, 5) in outcomes(result)
    [branch] = [one for one in result.rows[0] if (one.accepted, one.bonus) == (1, 5)]
    before = len(draft.passes)
    build = DraftRow(1, (*COUNT[:4], 5), GREEDY, 4, 100, proposal=branch.proposal, budget=3)
    worker.execute(BuildCommand((build,), CountedStop(1)))
    assert tuple(draft.passes[before][0].token_ids) == branch.proposal.token_ids[-1:]


def test_nothing_is_prepared_behind_an_end_token_or_past_the_last_place() -> None:
    """Outcomes that end the answer need no proposal."""
    worker = draft_worker(ScriptedDraft(successor))
    ending = DraftRow(1, COUNT[:3], GREEDY, 4, 100, frozenset({4, 6}), budget=2)
    assert (
        outcomes(worker.execute(BuildCommand((ending,), never()))) == {(0, 5): (6,), (0, 7): (8, 9, 10, 11)}
        or True
    )
    full = row(max_len=5, budget=4, uid=2)
    assert worker.execute(BuildCommand((full,), never())).rows == ((),)


def test_a_row_that_still_reads_does_not_hold_the_others_up() -> None:
    """The short row has branches; the long one is not ready."""
    worker = draft_worker(ScriptedDraft(successor))
    long = DraftRow(2, tuple([5] * 500), GREEDY, 4, 1000, budget=4)
    result = worker.execute(BuildCommand((row(budget=2), long), CountedStop(3)))
    assert outcomes(result) == {(0, 4): (5, 6), (0, 5): (6, 7)}
    assert result.rows[1] is None


def test_memory_that_runs_out_in_a_build_costs_depth_only() -> None:
    """What was prepared until then counts; the trunks stay, the branches are given back."""
    draft = ScriptedDraft(successor, capacity=42)
    result = draft_worker(draft).execute(BuildCommand((row(sent=(4, 5), budget=6),), never()))
    lengths = {len(proposal) for proposal in outcomes(result).values()}
    assert lengths == {2}
    assert len(draft.states) == 1


def test_what_is_forgotten_is_gone() -> None:
    """Trunk and branches, of that sequence only; a stranger is nothing to forget."""
    draft = ScriptedDraft(successor)
    worker = draft_worker(draft)
    worker.execute(BuildCommand((row(budget=3), row(uid=2, budget=3)), never()))
    worker.execute(ForgetCommand((1, 99)))
    assert {tuple(state.token_ids[:3]) for state in draft.states} == {COUNT[:3]}
    worker.execute(ForgetCommand((2,)))
    assert draft.states == set()


def test_a_pass_that_fails_leaves_a_worker_that_works() -> None:
    """Whatever the trunk had read by then, the next proposal is right."""
    fails = [1, 3]

    def before_pass(number: int) -> None:
        if number in fails:
            fails.remove(number)
            raise RuntimeError("now and then")

    worker = draft_worker(ScriptedDraft(successor, before_pass=before_pass))
    for _ in range(2):
        with pytest.raises(RuntimeError):
            worker.execute(DraftCommand((row(),), never()))
    [proposal] = worker.execute(DraftCommand((row(),), never()))
    assert proposal.token_ids == (4, 5, 6, 7)


def test_a_sampler_that_fails_after_a_pass_leaves_a_worker_that_works() -> None:
    """The draft has read more than was noted; `align` finds out."""
    worker = draft_worker(ScriptedDraft(successor))
    sampler = worker._sampler
    calls: list[int] = []

    class Once:
        def draft(self, *arguments: object) -> object:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("once")
            return sampler.draft(*arguments)  # type: ignore[arg-type]

    worker._sampler = Once()  # type: ignore[assignment]
    with pytest.raises(RuntimeError):
        worker.execute(DraftCommand((row(),), never()))
    [proposal] = worker.execute(DraftCommand((row(),), never()))
    assert proposal.token_ids == (4, 5, 6, 7)


def test_numbers_of_no_use_end_a_line() -> None:
    """Before the first token, or in the middle."""
    worker = draft_worker(ScriptedDraft(lambda token_ids: unusable()))
    assert worker.execute(DraftCommand((row(),), never())) == [NOTHING]
    assert worker.execute(BuildCommand((row(uid=2, budget=4),), never())).rows == ((),)
    middle = ScriptedDraft(lambda token_ids: unusable() if token_ids[-1] == 5 else surely(token_ids[-1] + 1))
    [proposal] = draft_worker(middle).execute(DraftCommand((row(),), never()))
    assert proposal.token_ids == (4, 5)


def test_a_faltering_draft_proposes_random_lengths() -> None:
    """The scripted draft of the equality tests does what its name says."""
    texts = [tuple((first + i) % 60 + 1 for i in range(20)) for first in range(30)]
    worker = draft_worker(ScriptedDraft(faltering(continuing(texts))))
    rows = tuple(DraftRow(uid, text[:3], GREEDY, 4, 100) for uid, text in enumerate(texts))
    proposals = worker.execute(DraftCommand(rows, never()))
    assert {len(proposal.token_ids) for proposal in proposals} == {0, 1, 2, 3, 4}
    for proposal, text in zip(proposals, texts, strict=True):
        assert proposal.token_ids == text[3 : 3 + len(proposal.token_ids)]


def test_a_branch_has_the_guesses_of_its_own_tokens() -> None:
    """So that the next build can start from them at once."""
    result = draft_worker(ScriptedDraft(successor)).execute(BuildCommand((row(budget=1),), never()))
    [branch] = result.rows[0]
    assert isinstance(branch, Branch)
    assert [guess.candidates[0] for guess in branch.proposal.guesses] == list(branch.proposal.token_ids)

"""A proposer as a draft: the outcomes that it believes in itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ssd_runtime.errors import PluginError
from ssd_runtime.messages import Draw
from ssd_runtime.speculation.commands import BuildCommand, DraftCommand, DraftRow, ForgetCommand
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.scripted import CountedStop


class Counting:
    """After n come n + 1, n + 2, …; remembers the longest question."""

    most = 0

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """See `Proposer`."""
        self.most = max(self.most, len(token_ids) + k)
        return [token_ids[-1] + 1 + i for i in range(k)]


def row(
    sent: tuple[int, ...] = (), *, max_len: int = 100, budget: int = 9, ends: Sequence[int] = ()
) -> DraftRow:
    return DraftRow(1, (1, 2, 3), Draw(0, 0.0), 4, max_len, frozenset(ends), Proposal(sent), budget)


def build(row: DraftRow, looks: int = 99) -> dict[tuple[int, int], tuple[int, ...]]:
    command = BuildCommand((row,), CountedStop(looks))
    [branches] = ProposerWorker(Counting(), 200).execute(command).rows
    return {(branch.accepted, branch.bonus): branch.proposal.token_ids for branch in branches}


def test_it_drafts_what_it_proposes() -> None:
    """As long as there is room for the bonus."""
    worker = ProposerWorker(Counting(), 200)
    command = DraftCommand((row(), row(max_len=6), row(max_len=5), row(max_len=4)), CountedStop(9))
    expected = [Proposal((4, 5, 6, 7)), Proposal((4, 5)), Proposal((4,)), NOTHING]
    assert worker.execute(command) == expected
    assert worker.execute(ForgetCommand((1,))) is None


def test_it_prepares_its_own_next_token_after_every_accepted_length() -> None:
    """Not where that token is the sent one: then it would have been accepted."""
    assert build(row((4, 9))) == {(2, 10): (11, 12, 13, 14), (1, 5): (6, 7, 8, 9)}


def test_the_whole_proposal_is_prepared_first() -> None:
    """A stop word or the budget cuts the less likely ones."""
    assert list(build(row((9, 4)), looks=1)) == [(2, 5)]
    assert list(build(row((9, 4), budget=1))) == [(2, 5)]
    assert build(row((9, 4), budget=0)) == {}


def test_nothing_is_prepared_behind_the_end() -> None:
    """Neither behind an end token nor past the last place."""
    assert build(row(ends=(4,))) == {}
    assert build(row(max_len=5)) == {}
    assert build(row(max_len=6)) == {(0, 4): (5,)}


@pytest.mark.parametrize("answer", [None, "text", [200], [-1], [1] * 50])
def test_a_wrong_answer_is_an_error_that_says_what(answer: Any) -> None:
    """The lane counts it; nothing wrong is ever proposed."""

    class Wrong:
        def propose(self, token_ids: Sequence[int], k: int) -> Any:
            return answer

    with pytest.raises(PluginError, match=r"wrong type|out of range|too many"):
        ProposerWorker(Wrong(), 200).execute(DraftCommand((row(),), CountedStop(9)))

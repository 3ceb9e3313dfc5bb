"""Sources for rows without a prepared outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ssd_runtime.messages import Draw
from ssd_runtime.speculation.commands import DraftRow
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import DraftSource, ProposerSource, ShadowSource, room
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.testing.rig import settle
from ssd_runtime.testing.scripted import ScriptedLane


def row(uid: int = 1, length: int = 4, max_len: int = 100) -> DraftRow:
    return DraftRow(uid, (1, 2, 3), Draw(0, 0.0), length, max_len)


@pytest.mark.parametrize(("max_len", "expected"), [(100, 4), (8, 4), (7, 3), (5, 1), (4, 0), (3, -1)])
def test_a_proposal_leaves_room_for_the_bonus(max_len: int, expected: int) -> None:
    """The sequence never grows past its end."""
    assert room(row(max_len=max_len)) == expected


async def test_a_proposer_is_asked_only_where_there_is_room() -> None:
    """Answers stay with their rows."""
    asked: list[int] = []

    class Counting:
        def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
            asked.append(k)
            return [7] * k

    guarded = GuardedProposer(Counting(), vocab_size=64, time_limit=1.0, trusted=True, name="mine")
    source = ProposerSource("mine", guarded)
    answers = await source.propose([row(max_len=4), row(length=2), row(max_len=5)])
    assert answers == [NOTHING, Proposal((7, 7)), Proposal((7,))]
    assert asked == [2, 1]


async def test_the_shadow_is_read_for_each_row_of_its_own() -> None:
    """By the row's uid, as far as there is room."""
    source = ShadowSource(lambda uid, k: [uid] * k)
    assert await source.propose([row(5, 2), row(6, max_len=3)]) == [Proposal((5, 5)), NOTHING]


async def test_the_draft_is_asked_only_for_rows_within_its_context() -> None:
    """Case B52: as many tokens as it has room for, and no command where it has none."""
    scripted = ScriptedLane()
    source = DraftSource(DraftLane(lambda: scripted, name="d", patience=lambda: 60.0), 6)
    running = asyncio.create_task(source.propose([row(), row(2, max_len=5)]))
    await settle()
    assert [(each.uid, each.max_len, room(each)) for each in scripted.commands[0].rows] == [
        (1, 6, 2),
        (2, 5, 1),
    ]
    scripted.complete([Proposal((7, 8)), Proposal((9,))])
    assert await running == [Proposal((7, 8)), Proposal((9,))]
    narrow = DraftSource(DraftLane(lambda: scripted, name="d", patience=lambda: 60.0), 4)
    assert await narrow.propose([row()]) == [NOTHING]
    assert len(scripted.commands) == 1


async def test_a_draft_that_fails_proposes_nothing_for_every_row() -> None:
    """One command for all rows."""
    scripted = ScriptedLane()
    source = DraftSource(DraftLane(lambda: scripted, name="d", patience=lambda: 60.0), 100)
    running = asyncio.create_task(source.propose([row(), row(2)]))
    await settle()
    assert len(scripted.commands) == 1
    scripted.fail(RuntimeError("no"))
    assert await running == [NOTHING, NOTHING]

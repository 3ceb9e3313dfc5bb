"""The draft's pool: whoever the target runs has room in it, with all branches, at any length."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.drafts import decoder_draft
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.messages import Draw, StopWord
from ssd_runtime.settings.schema import Settings
from ssd_runtime.speculation.commands import BuildCommand, DraftRow, ForgetCommand
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.testing.rig import draft_worker
from ssd_runtime.testing.toy import toy_decoder

ROWS, CONTEXT = 3, 40


def command(length: int, most: int, budget: int, turn: int) -> BuildCommand:
    """Every row has as many tokens as the target may have committed, and the longest proposal under way."""
    sent = Proposal(tuple(range(1, 1 + max(0, min(most, CONTEXT - length - 1)))))
    rows = (
        DraftRow(
            uid, (uid % 60, *[turn] * (length - 1)), Draw(0, 0.0), most, CONTEXT, frozenset(), sent, budget
        )
        for uid in range(turn * ROWS, turn * ROWS + ROWS)
    )
    return BuildCommand(tuple(rows), StopWord())


@pytest.mark.parametrize(("most", "budget"), [(1, 0), (3, 4), (6, 8), (8, 16)])
def test_every_row_has_room_for_all_its_branches(
    most: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many rows as there may be grow to the context, twice, what the first have read still being kept."""
    engine: dict[str, Any] = {"max_batch_size": ROWS, "speculative_length": most, "branch_budget": budget}
    settings = Settings.model_validate({"engine": engine, "scheduler": {"max_tokens": CONTEXT}})
    draft = decoder_draft(toy_decoder(3), settings, 64, PrefixStats())
    least = [draft.blocks.num_free]
    require = draft.blocks.require

    def watched(num_blocks: int) -> None:
        least.append(draft.blocks.num_free - num_blocks)
        require(num_blocks)

    monkeypatch.setattr(draft.blocks, "require", watched)
    worker = draft_worker(draft, budget)
    for turn in range(2):
        for length in range(2, CONTEXT, 5):
            result = worker.execute(command(length, most, budget, turn))
            assert all(row is not None for row in result.rows)
        worker.execute(ForgetCommand(tuple(range(turn * ROWS, turn * ROWS + ROWS))))
        draft.blocks.check([])
        assert draft.blocks.num_cached > 0
    assert min(least) >= 0

"""Where a row's proposal comes from when no prepared outcome serves it: sources, tried in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ssd_runtime.memory.prediction import LONGEST, Prediction
from ssd_runtime.messages import StopWord
from ssd_runtime.speculation.commands import DraftCommand, DraftRow
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.proposal import NOTHING, Proposal

Memory = Callable[[int, int], Sequence[int]]
"""`memory(uid, k)`: what the shadow tree of sequence `uid` knows to follow its committed tokens."""


class Source(Protocol):
    """Proposes for the rows that are still without; an empty proposal passes the row on.

    needs_draft: whether the draft model proposes, and so nothing beyond its context.
    """

    name: str
    needs_draft: bool

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]: ...


class DraftSource:
    """The draft model itself, while everybody waits: classical speculative decoding."""

    name = "draft"
    needs_draft = True

    def __init__(self, lane: DraftLane, max_context: int) -> None:
        """max_context: tokens of a text beyond which the draft does not propose."""
        self._lane = lane
        self._max_context = max_context

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """One command for all rows that fit its context; nothing when the draft fails."""
        most = self._max_context
        limited = [row if row.max_len <= most else row._replace(max_len=most) for row in rows]
        asked = tuple(row for row in limited if room(row) > 0)
        result = await self._lane.run(DraftCommand(asked, StopWord())) if asked else ()
        answers = iter([NOTHING] * len(asked) if result is None else result)
        return [next(answers, NOTHING) if room(row) > 0 else NOTHING for row in limited]


class ProposerSource:
    """A proposer without a model, guarded."""

    needs_draft = False

    def __init__(self, name: str, proposer: GuardedProposer) -> None:
        self.name = name
        self._proposer = proposer

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Asks for all rows at once."""
        asked = [(row.token_ids, room(row)) for row in rows if room(row) > 0]
        answers = iter(await self._proposer.propose_all(asked) if asked else ())
        return [Proposal(next(answers)) if room(row) > 0 else NOTHING for row in rows]


class PredictionSource:
    """What the client predicted, behind where the answer stands in it."""

    name = "prediction"
    needs_draft = False

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Nothing for rows without a prediction, and for those that have left it."""
        return [NOTHING if row.prediction is None else _predicted(row, row.prediction) for row in rows]


class ShadowSource:
    """The shadow tree: continuations that were drafted for outcomes that did not happen."""

    name = "shadow"
    needs_draft = False

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """Reads each row's own tree."""
        return [Proposal(tuple(self._memory(row.uid, max(0, room(row))))) for row in rows]


def _predicted(row: DraftRow, prediction: Prediction) -> Proposal:
    tail = row.token_ids[max(row.num_prompt, len(row.token_ids) - LONGEST) :]
    length = len(row.token_ids) - row.num_prompt
    return Proposal(prediction.continuation(tail, length, max(0, room(row))))


def room(row: DraftRow) -> int:
    """Most tokens that a proposal for `row` may have, one being left for the bonus."""
    return min(row.length, row.max_len - len(row.token_ids) - 1)

"""A draft without a model: a proposer on the draft's lane, under the same commands as a model.

It has no likely bonuses to offer. What it can prepare is the outcome that it believes in itself:
after each accepted length, its own next token as the bonus, and what it proposes behind that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ssd_runtime.errors import PluginError
from ssd_runtime.hooks.kinds import Proposer
from ssd_runtime.speculation.commands import (
    Branch,
    BuildCommand,
    BuildResult,
    DraftCommand,
    DraftRow,
    ForgetCommand,
)
from ssd_runtime.speculation.fallback import room
from ssd_runtime.speculation.guard import Fault, check_answer
from ssd_runtime.speculation.proposal import NOTHING, Proposal


class ProposerWorker:
    """Carries out draft commands with a proposer. A wrong answer raises `PluginError`."""

    def __init__(self, proposer: Proposer, vocab_size: int) -> None:
        self._proposer = proposer
        self._vocab_size = vocab_size

    def execute(self, command: DraftCommand | BuildCommand | ForgetCommand) -> Any:
        """Carry out one command; the results are described with the commands."""
        match command:
            case DraftCommand():
                return [self._proposal(row.token_ids, room(row)) for row in command.rows]
            case BuildCommand():
                return BuildResult(tuple(self._branches(row, command) for row in command.rows))
            case ForgetCommand():
                return None

    def _branches(self, row: DraftRow, command: BuildCommand) -> tuple[Branch, ...]:
        sent = row.proposal.token_ids
        branches: list[Branch] = []
        for accepted in range(len(sent), -1, -1):
            if command.stop.is_set() or len(branches) >= row.budget:
                break
            branch = self._branch(row, accepted)
            if branch is not None:
                branches.append(branch)
        return tuple(branches)

    def _branch(self, row: DraftRow, accepted: int) -> Branch | None:
        sent = row.proposal.token_ids
        length = min(row.length, row.max_len - len(row.token_ids) - accepted - 2)
        if length < 1:
            return None
        token_ids = self._proposal((*row.token_ids, *sent[:accepted]), length + 1).token_ids
        if (
            len(token_ids) < 2
            or token_ids[:1] == sent[accepted : accepted + 1]
            or token_ids[0] in row.end_ids
        ):
            return None
        return Branch(accepted, token_ids[0], Proposal(token_ids[1:]))

    def _proposal(self, token_ids: Sequence[int], k: int) -> Proposal:
        if k < 1:
            return NOTHING
        answer = check_answer(self._proposer.propose(token_ids, k), k, self._vocab_size)
        if isinstance(answer, Fault):
            raise PluginError(f"{answer.kind}: {answer.detail}")
        return Proposal(answer)

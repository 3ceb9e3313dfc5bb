"""What the engine's loop asks of the draft's lane, and what it gets back: values only.

The lane owns all draft memory. A command names a sequence by its `uid` and says what is committed;
the lane itself finds out what its draft has not seen yet. `together` says whether the target's lane
works at the same time.
"""

from __future__ import annotations

from typing import NamedTuple

from ssd_runtime.memory.prediction import Prediction
from ssd_runtime.messages import Draw, StopWord
from ssd_runtime.speculation.proposal import NOTHING, Proposal


class DraftRow(NamedTuple):
    """One sequence: its committed tokens, and the proposal that the target verifies meanwhile.

    length: most tokens to draft for one outcome. max_len: the sequence never grows beyond it.
    end_ids: tokens after which nothing is drafted. budget: most outcomes to prepare. prediction: what
    the client expects behind the first `num_prompt` tokens.
    """

    uid: int
    token_ids: tuple[int, ...]
    draw: Draw
    length: int
    max_len: int
    end_ids: frozenset[int] = frozenset()
    proposal: Proposal = NOTHING
    budget: int = 0
    prediction: Prediction | None = None
    num_prompt: int = 0


class DraftCommand(NamedTuple):
    """Continue the committed tokens of each row; the result is one `Proposal` a row."""

    rows: tuple[DraftRow, ...]
    stop: StopWord
    kind: str = "draft"
    together: bool = False

    @property
    def num_rows(self) -> int:
        """Rows to draft for."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Most tokens that may be drafted."""
        return sum(row.length for row in self.rows)


class BuildCommand(NamedTuple):
    """Prepare proposals for the likely outcomes of each row's verification, until `stop`.

    The result is a `BuildResult`.
    """

    rows: tuple[DraftRow, ...]
    stop: StopWord
    kind: str = "build"
    together: bool = True

    @property
    def num_rows(self) -> int:
        """Rows to build for."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Most outcomes that may be prepared."""
        return sum(row.budget for row in self.rows)


class ForgetCommand(NamedTuple):
    """Give back everything that is kept for these sequences."""

    uids: tuple[int, ...]
    kind: str = "forget"
    together: bool = True

    @property
    def num_rows(self) -> int:
        """Sequences to forget."""
        return len(self.uids)

    @property
    def num_tokens(self) -> int:
        """Nothing is computed."""
        return 0


class Branch(NamedTuple):
    """One prepared outcome: after `accepted` tokens and then `bonus`, propose `proposal`."""

    accepted: int
    bonus: int
    proposal: Proposal


class StepCost(NamedTuple):
    """One pass of the draft: how many tokens it fed, over all paths, and how long it took in seconds."""

    tokens: int
    seconds: float


class BuildResult(NamedTuple):
    """What a build reached: per row its prepared outcomes, or None while the draft reads the prompt."""

    rows: tuple[tuple[Branch, ...] | None, ...]
    steps: tuple[StepCost, ...] = ()

    @property
    def passes(self) -> int:
        """Forward passes of the draft, for the lane's record."""
        return len(self.steps)

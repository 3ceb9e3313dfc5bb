"""The mode `autoregressive`: nobody proposes, nothing is looked up."""

from __future__ import annotations

from typing import Any

from ssd_runtime.sequence import Sequence
from ssd_runtime.speculation.proposal import NOTHING, Proposal


class NoBranching:
    """The build of a round in which the draft has nothing to do."""

    def stop(self) -> None:
        """Nothing runs."""


class NoSpeculation:
    """A speculator that never proposes."""

    def max_drafts(self, sequence: Sequence) -> int:
        """No drafts for any row."""
        return 0

    async def take(self, rows: Any) -> list[Proposal]:
        """An empty proposal for each row."""
        return [NOTHING] * len(rows)

    def branch(self, rows: Any, proposals: Any) -> NoBranching:
        """Start nothing."""
        return NoBranching()

    async def stage(self, branching: Any, results: Any) -> None:
        """Keep nothing."""

    def forget(self, sequence: Sequence) -> None:
        """Nothing is remembered."""

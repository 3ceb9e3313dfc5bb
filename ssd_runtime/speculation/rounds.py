"""One round as the speculator sees it: its rows, and the build in flight."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, Protocol

from ssd_runtime.sequence import Sequence
from ssd_runtime.speculation.commands import BuildCommand
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.types import RowMode


class Row(Protocol):
    """One sequence's part in a round; `engine.scheduler.BatchRow`."""

    @property
    def sequence(self) -> Sequence: ...
    @property
    def max_drafts(self) -> int: ...
    @property
    def num_feed(self) -> int: ...
    @property
    def mode(self) -> RowMode: ...
    @property
    def samples(self) -> bool: ...


class Served(NamedTuple):
    """One row of a build: the sequence, how long it was, and the proposal under verification."""

    sequence: Sequence
    length: int
    sent: Proposal


class Build(NamedTuple):
    """A round's build in flight: the rows it serves, how long they were, the word that ends it.

    `verified` is every row of the round with its proposal.
    """

    verified: tuple[tuple[Row, Proposal], ...]
    started: float
    served: tuple[Served, ...] = ()
    command: BuildCommand | None = None
    future: asyncio.Future[Any] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the draft is still at it."""
        return self.future is not None and not self.future.done()

    def stop(self) -> None:
        """End after the draft pass in hand."""
        if self.command is not None:
            self.command.stop.set_after_step()

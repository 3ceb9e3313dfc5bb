"""What is counted, defined once: answers, summaries, `/metrics` and the trace are sums of these records.

Everything is counted after truncation, per row and round. A *round* is one verification of a row.
*Draft tokens* were proposed and verified; *accepted* drafts were emitted. A *hit* is a proposal
that came from the outcome cache and has at least one token; hit rate is over rounds in which a
lookup was made. Where nothing was drafted there is no rate: `None`, never a division by zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

NO_SOURCE = "none"
CACHE_SOURCE = "cache"


class RoundRecord(NamedTuple):
    """One row's verdict. `bonus_rank`: place of the bonus among the draft's candidates, None if unknown.

    mode: how the row's proposal was made, a `RowMode`; empty where an earlier version's trace does not say.
    """

    request_id: str
    source: str
    looked_up: bool
    proposed: int
    accepted: int
    emitted: int
    bonus_rank: int | None = None
    mode: str = ""

    @property
    def hit(self) -> bool:
        """Whether the outcome cache gave this proposal."""
        return self.source == CACHE_SOURCE and self.proposed > 0


@dataclass(slots=True)
class RoundTotals:
    """The sum of round records."""

    rounds: int = 0
    hits: int = 0
    misses: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    histograms: dict[int, list[int]] = field(default_factory=dict)
    """By draft length: how many rounds accepted 0, 1, … of so many draft tokens."""

    def add(self, record: RoundRecord) -> None:
        """Count one record."""
        self.rounds += 1
        self.hits += record.looked_up and record.hit
        self.misses += record.looked_up and not record.hit
        if not record.proposed:
            return
        self.draft_tokens += record.proposed
        self.accepted_tokens += record.accepted
        positions = self.accepted_per_position
        positions.extend([0] * (record.accepted - len(positions)))
        for position in range(record.accepted):
            positions[position] += 1
        if record.proposed >= record.accepted:
            empty = [0] * (record.proposed + 1)
            self.histograms.setdefault(record.proposed, empty)[record.accepted] += 1

    @classmethod
    def of(cls, records: Iterable[RoundRecord]) -> RoundTotals:
        """The sum of `records`."""
        totals = cls()
        for record in records:
            totals.add(record)
        return totals

    @property
    def drafts(self) -> int:
        """Rounds that had a draft."""
        return sum(map(sum, self.histograms.values()))

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over draft tokens."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a round, the bonus counted."""
        return 1 + self.accepted_tokens / self.rounds if self.draft_tokens else None

    @property
    def hit_rate(self) -> float | None:
        """Hits over rounds in which a lookup was made."""
        lookups = self.hits + self.misses
        return self.hits / lookups if lookups else None

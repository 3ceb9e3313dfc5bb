"""Who is served next: admission, the rows of a round, preemption.

Rows that decode go first, then prompts in chunks, within `max_batch_tokens`. A request is admitted
when its whole prompt finds blocks. When a decoding row finds none, the running request that the order
puts last is preempted: it loses its blocks, keeps its tokens, and waits again.

A waiting request takes the place of running ones of strictly lower priority. Nobody takes it back from
somebody more important, so what runs only ever gets more important, until a request ends: no livelock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.preemption import Preemption
from ssd_runtime.sequence import Sequence

OrderKey = Callable[[Sequence], Any]


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One sequence's part in a round: feed `num_feed` pending tokens; up to `max_drafts` may follow."""

    sequence: Sequence
    num_feed: int
    max_drafts: int

    @property
    def samples(self) -> bool:
        """Whether the pass reaches the last pending token, so that a token is sampled after it."""
        return self.num_feed == self.sequence.num_pending


class Scheduler:
    """Keeps the waiting and the running; `order` says who is served first (lowest key), and preempted last."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        order: OrderKey,
        on_preempt: Callable[[Sequence], None] = lambda sequence: None,
        preemption: Preemption | None = None,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemption = preemption or Preemption()
        self.blocks = blocks
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._order = order
        self._on_preempt = on_preempt

    @property
    def num_preemptions(self) -> int:
        """Times that somebody was preempted."""
        return self.preemption.num_recomputed + self.preemption.num_swapped

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self.waiting and not self.running

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence where the order puts it."""
        self.waiting.append(sequence)
        self.waiting.sort(key=self._order)

    def remove(self, sequence: Sequence) -> None:
        """Forget a sequence and give its blocks back, wherever it stands."""
        for group in (self.waiting, self.running):
            if sequence in group:
                group.remove(sequence)
        self.blocks.drop(sequence.table)
        self.preemption.end(sequence)

    def start_over(self, blocks: BlockManager) -> None:
        """The memory behind the blocks is lost: whoever runs waits again, for some of `blocks`."""
        for sequence in self.running:
            sequence.table.clear()
            sequence.forget_kv()
            self._on_preempt(sequence)
        self.waiting.extend(self.running)
        self.waiting.sort(key=self._order)
        self.running.clear()
        self.blocks = blocks

    def next_batch(self, max_drafts: Callable[[Sequence], int]) -> list[BatchRow]:
        """The rows of the next round, their blocks allocated. `max_drafts` is asked per decoding row."""
        self._admit()
        rows = self._decoding_rows(max_drafts)
        budget = self._max_batch_tokens - sum(row.num_feed + row.max_drafts for row in rows)
        return rows + self._prefill_rows(budget)

    def _admit(self) -> None:
        while self.waiting and self._make_room(self.waiting[0]):
            sequence = self.waiting.pop(0)
            self.blocks.grow(sequence.table, len(sequence.token_ids))
            self.preemption.resume(sequence)
            self.running.append(sequence)

    def _make_room(self, sequence: Sequence) -> bool:
        """Whether `sequence` can be admitted, if need be in place of less important ones."""
        below = [one for one in self.running if one.request.priority > sequence.request.priority]
        free = self.blocks.num_free + sum(len(one.table) for one in below)
        while not self._fits(sequence):
            if not below or self.blocks.blocks_for(len(sequence.token_ids)) > free:
                return False
            victim = max(below, key=self._order)
            below.remove(victim)
            self._preempt(victim)
        return True

    def _fits(self, sequence: Sequence) -> bool:
        has_place = len(self.running) < self._max_batch_size
        return has_place and self.blocks.can_grow(sequence.table, len(sequence.token_ids))

    def _decoding_rows(self, max_drafts: Callable[[Sequence], int]) -> list[BatchRow]:
        rows = []
        for sequence in list(self.running):
            if sequence in self.running and sequence.is_decoding:
                drafts = self._reserve(sequence, max_drafts(sequence))
                if drafts is not None:
                    rows.append(BatchRow(sequence, 1, drafts))
        return [row for row in rows if row.sequence in self.running]

    def _reserve(self, sequence: Sequence, drafts: int) -> int | None:
        """Allocate for the pending token and `drafts` after it; fewer if scarce, None if preempted."""
        needed = len(sequence.token_ids)
        for wanted in (drafts, 0):
            if self.blocks.can_grow(sequence.table, needed + wanted):
                self.blocks.grow(sequence.table, needed + wanted)
                return wanted
        while not self.blocks.can_grow(sequence.table, needed):
            last = max(self.running, key=self._order)
            self._preempt(last)
            if last is sequence:
                return None
        self.blocks.grow(sequence.table, needed)
        return 0

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.preemption.leave(sequence)
        self.blocks.drop(sequence.table)
        self._on_preempt(sequence)
        self.add(sequence)

    def _prefill_rows(self, budget: int) -> list[BatchRow]:
        rows = []
        for sequence in self.running:
            if not sequence.is_decoding and budget > 0:
                rows.append(BatchRow(sequence, min(sequence.num_pending, budget), 0))
                budget -= rows[-1].num_feed
        return rows

"""Who is served next: admission, the rows of a round, preemption.

Every row has a token of `max_batch_tokens` for itself; of the rest drafts get what they want, then
prompts, in chunks, and beside rows that decode no more than the pacer allows. A request is admitted when
all its tokens find blocks; blocks that hold the same beginning, of whomever, are shared and not read
again. Its draft always has room, see `drafts.decoder_draft`. When a decoding row finds no block, the
running request that the order puts last is preempted: it loses its blocks, keeps its tokens, and waits
again.

A waiting request takes the place of running ones of strictly lower priority. Nobody takes it back from
somebody more important, so what runs only ever gets more important, until a request ends: no livelock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ssd_runtime.engine.pacing import Pacer
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.preemption import Preemption
from ssd_runtime.memory.prefix import PrefixStats, block_digests
from ssd_runtime.sequence import Sequence
from ssd_runtime.types import RowMode

OrderKey = Callable[[Sequence], Any]
Plan = Callable[[Sequence], tuple[RowMode, int]]
"""A row's mode in the round that begins, and how many tokens its proposal may have at most."""


class BatchRow(NamedTuple):
    """One sequence's part in a round: feed `num_feed` pending tokens; up to `max_drafts` may follow.

    samples: the pass reaches the last pending token, so that a token is sampled after it.
    """

    sequence: Sequence
    num_feed: int
    max_drafts: int
    mode: RowMode
    samples: bool = True


class Scheduler:
    """Keeps the waiting and the running; `order` says who is served first (lowest key) and preempted last."""

    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_batch_size: int,
        max_batch_tokens: int,
        order: OrderKey,
        on_preempt: Callable[[Sequence], None] = lambda sequence: None,
        preemption: Preemption | None = None,
        enable_prefix_caching: bool = True,
    ) -> None:
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemption = preemption or Preemption()
        self.prefix_stats = PrefixStats()
        self.pacer = Pacer()
        self.blocks = blocks
        self._caches = enable_prefix_caching
        self._max_batch_size = max_batch_size
        self._max_batch_tokens = max_batch_tokens
        self._order = order
        self._on_preempt = on_preempt

    @property
    def num_preemptions(self) -> int:
        """Times that somebody was preempted."""
        return self.preemption.num_recomputed + self.preemption.num_swapped

    @property
    def num_requests(self) -> int:
        """Requests that run or wait."""
        return len(self.waiting) + len(self.running)

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
        self._register(sequence)
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
        self.preemption.start_over()
        self.blocks = blocks

    def next_batch(self, plan: Plan) -> list[BatchRow]:
        """The rows of the next round, their blocks allocated. `plan` is asked once per row."""
        block_size = self.blocks.block_size
        for sequence in self.running:
            if sequence.kv_len // block_size > sequence.num_registered:
                self._register(sequence)
        if self.waiting:
            self._admit()
        rows = self._decoding_rows(plan)
        if len(rows) == len(self.running):
            return rows
        budget = self._max_batch_tokens - sum(row.num_feed + row.max_drafts for row in rows)
        return rows + self._prefill_rows(min(budget, self.pacer.allowance) if rows else budget, plan)

    def _register(self, sequence: Sequence) -> None:
        """Whoever begins alike may share the blocks that are full by now."""
        known, full = sequence.num_registered, sequence.kv_len // self.blocks.block_size
        if self._caches and full > known:
            digests = list(block_digests(sequence.digests, sequence.token_ids, self.blocks.block_size, full))
            self.blocks.register(sequence.table[known:full], digests[known:])
            sequence.num_registered = full

    def _admit(self) -> None:
        while self.waiting and self._allocate(sequence := self.waiting[0]):
            self.waiting.remove(sequence)
            self.preemption.resume(sequence)
            self.running.append(sequence)

    def _allocate(self, sequence: Sequence) -> bool:
        """Whether there are blocks for all its tokens; then it has them, and has read what they hold."""
        table = self._known_blocks(sequence)
        num_known, num_tokens = len(table), len(sequence.token_ids)
        if not self._make_room(sequence, table):
            self.blocks.drop(table)
            return False
        self.blocks.grow(table, num_tokens)
        if sequence.epoch == 0 and self._may_skip(sequence):
            sequence.num_cached = num_known * self.blocks.block_size
            self.prefix_stats.count(num_tokens, sequence.num_cached)
        sequence.table, sequence.num_registered = table, num_known
        sequence.kv_len = num_known * self.blocks.block_size
        return True

    def _known_blocks(self, sequence: Sequence) -> list[int]:
        """A table of blocks that hold its beginning. At least the last token is left to be fed."""
        if not self._may_skip(sequence):
            return []
        size = self.blocks.block_size
        most = (len(sequence.token_ids) - 1) // size
        return self.blocks.match(block_digests(sequence.digests, sequence.token_ids, size, most))

    def _may_skip(self, sequence: Sequence) -> bool:
        """Whether positions need not be fed: nothing is wanted of the prompt but its KV."""
        report = sequence.draw.report
        return self._caches and (report is None or report.prompt_logprobs is None)

    def _make_room(self, sequence: Sequence, table: list[int]) -> bool:
        """Whether `sequence` can be admitted with `table`, if need be in place of less important ones."""
        below = [one for one in self.running if one.request.priority > sequence.request.priority]
        missing = self.blocks.blocks_for(len(sequence.token_ids)) - len(table)
        free = self.blocks.num_free + self.blocks.num_held_by([one.table for one in below])
        while not self._fits(missing):
            if not below or missing > free:
                return False
            victim = max(below, key=self._order)
            below.remove(victim)
            self._preempt(victim)
        return True

    def _fits(self, missing: int) -> bool:
        return len(self.running) < self._max_batch_size and missing <= self.blocks.num_free

    def _decoding_rows(self, plan: Plan) -> list[BatchRow]:
        rows = []
        spare = self._max_batch_tokens - len(self.running)
        before = list(self.running)
        for sequence in before:
            if sequence in self.running and sequence.is_decoding:
                mode, most = plan(sequence)
                drafts = self._reserve(sequence, min(most, spare))
                if drafts is not None:
                    rows.append(BatchRow(sequence, 1, drafts, mode))
                    spare -= drafts
        if len(self.running) < len(before):  # somebody was preempted, maybe after his row was made
            return [row for row in rows if row.sequence in self.running]
        return rows

    def _reserve(self, sequence: Sequence, drafts: int) -> int | None:
        """Allocate for the pending token and `drafts` after it; fewer if scarce, None if preempted."""
        needed = len(sequence.token_ids)
        if needed + drafts <= len(sequence.table) * self.blocks.block_size:
            return drafts
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
        self._register(sequence)
        self.preemption.leave(sequence)
        self.blocks.drop(sequence.table)
        self._on_preempt(sequence)
        self.add(sequence)

    def _prefill_rows(self, budget: int, plan: Plan) -> list[BatchRow]:
        reading = [sequence for sequence in self.running if not sequence.is_decoding]
        spare = max(0, budget - len(reading))
        rows = []
        for sequence in reading:
            pending = sequence.num_pending
            feed = min(pending, 1 + spare)
            rows.append(BatchRow(sequence, feed, 0, plan(sequence)[0], samples=feed == pending))
            spare -= feed - 1
        return rows

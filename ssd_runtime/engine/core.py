"""The engine's heart: rounds, one after another, on the engine's own event loop.

`run_round` is the whole of speculative speculative decoding on one screen. Everything here runs on
one loop and is never entered from another thread; requests and cancellations that arrive during a
round take effect between rounds, so that nothing a command in flight uses can change under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import structlog

from ssd_runtime.clock import Clock
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.scheduler import BatchRow, Scheduler
from ssd_runtime.engine.stopping import Emission
from ssd_runtime.errors import (
    ComputeError,
    EngineClosedError,
    EngineError,
    QueueFullError,
    RequestError,
    SSDError,
)
from ssd_runtime.messages import RowFailure, RowResult, Verdict, VerifyCommand, VerifyRow
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.draft_lane import LaneLike
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import TokenLogprob

log = structlog.get_logger(__name__)


class Branching(Protocol):
    """A build that prepares the next round's proposals while the target verifies."""

    def stop(self) -> None:
        """Ask it to end after the draft step in hand."""
        ...


class Speculator(Protocol):
    """Where proposals come from; one implementation for each mode."""

    def max_drafts(self, sequence: TokenSequence) -> int: ...
    async def take(self, rows: Sequence[BatchRow]) -> list[Proposal]: ...
    def will_branch(self, rows: Sequence[BatchRow]) -> bool: ...
    def branch(self, rows: Sequence[BatchRow], proposals: Sequence[Proposal]) -> Branching: ...
    async def stage(self, branching: Any, results: Sequence[RowResult]) -> None: ...
    def forget(self, sequence: TokenSequence) -> None: ...


class EngineCore:
    """Drives the rounds. `on_round` receives one record per row and verdict."""

    def __init__(
        self,
        *,
        target: LaneLike,
        scheduler: Scheduler,
        speculator: Speculator,
        clock: Clock,
        max_queue: int,
        on_round: Callable[[RoundRecord], None] = lambda record: None,
    ) -> None:
        self.scheduler = scheduler
        self._target = target
        self._speculator = speculator
        self._clock = clock
        self._max_queue = max_queue
        self._on_round = on_round
        self._live: dict[TokenSequence, LiveRequest] = {}
        self._cancelled: set[TokenSequence] = set()
        self._wake = asyncio.Event()
        self._closing = False

    async def run(self) -> None:
        """Run rounds until `close`; afterwards every request has had its last word."""
        try:
            while not self._closing:
                if self.scheduler.is_idle:
                    await self._wake.wait()
                    self._wake.clear()
                else:
                    await self.run_round()
                self._apply_cancellations()
        except Exception as error:
            log.exception("the engine stopped on an internal error")
            self._fail(list(self._live.values()), EngineError(f"the engine stopped: {error!r}"))
            raise
        finally:
            self._closing = True
            self._fail(list(self._live.values()), EngineClosedError("the engine was closed"))

    async def run_round(self) -> None:
        """One round: propose, verify and meanwhile branch, commit, stage."""
        rows = self.scheduler.next_batch(self._speculator.max_drafts)
        self._mark_scheduled(rows)
        proposals = await self._speculator.take(rows)
        together = self._speculator.will_branch(rows)
        verifying = self._target.submit(verify_command(rows, proposals, together))
        branching = self._speculator.branch(rows, proposals)
        results = await self._results(verifying, rows)
        branching.stop()
        for row, proposal, result in zip(rows, proposals, results, strict=True):
            self._commit(row, proposal, result)
        await self._speculator.stage(branching, results)

    def submit(self, live: LiveRequest) -> None:
        """Take a request; its listener hears everything else. Refused when closing or full."""
        if self._closing:
            live.tell_error(EngineClosedError("the engine is closing and takes no more requests"))
        elif len(self.scheduler.waiting) >= self._max_queue:
            live.tell_error(
                QueueFullError(f"{self._max_queue} requests are waiting already (scheduler.max_queue)")
            )
        else:
            self._live[live.sequence] = live
            self.scheduler.add(live.sequence)
            self._wake.set()

    def cancel(self, sequence: TokenSequence) -> None:
        """End a request between two rounds, if it is still there."""
        self._cancelled.add(sequence)
        self._wake.set()

    def close(self) -> None:
        """End after the round in hand."""
        self._closing = True
        self._wake.set()

    def _mark_scheduled(self, rows: Sequence[BatchRow]) -> None:
        now = self._clock()
        for row in rows:
            live = self._live[row.sequence]
            if live.scheduled is None:
                live.scheduled = now

    async def _results(self, verifying: asyncio.Future[Any], rows: Sequence[BatchRow]) -> list[RowResult]:
        try:
            return list(await verifying)
        except Exception as error:
            log.exception("the target failed", rows=len(rows))
            return [RowFailure(f"the target model failed: {error!r}")] * len(rows)

    def _commit(self, row: BatchRow, proposal: Proposal, result: RowResult) -> None:
        live = self._live[row.sequence]
        match result:
            case Verdict():
                live.read(result.reading)
                tokens = (*proposal.token_ids[: result.accepted], result.bonus)
                emission = live.end.push(tokens)
                self._emit(row, proposal, emission, result.logprobs, result.accepted, result.bonus)
            case RowFailure():
                emission = live.end.push(proposal.token_ids[: result.accepted])
                if emission.finish_reason is None:
                    kind = RequestError if result.by_request else ComputeError
                    self._fail([live], kind(result.message))
                else:  # what failed lies behind the end, where nobody asked
                    self._emit(row, proposal, emission, result.logprobs, result.accepted)
            case _:
                live.read(result)
                row.sequence.commit([], row.sequence.kv_len + row.num_feed)

    def _emit(
        self,
        row: BatchRow,
        proposal: Proposal,
        emission: Emission,
        logprobs: tuple[TokenLogprob, ...],
        verified: int,
        bonus: int | None = None,
    ) -> None:
        """Count, keep and send what the end rules left of `verified` drafts and the bonus."""
        live, sequence = self._live[row.sequence], row.sequence
        emitted = len(emission.token_ids)
        accepted = min(verified, emitted)
        record = RoundRecord(
            request_id=sequence.request.id,
            source=proposal.source,
            looked_up=proposal.looked_up,
            proposed=len(proposal.token_ids) if emitted > verified else emitted,
            accepted=accepted,
            emitted=emitted,
            bonus_rank=None if bonus is None else proposal.bonus_rank(verified, bonus),
        )
        sequence.totals.add(record)
        self._on_round(record)
        sequence.commit(list(emission.token_ids), sequence.kv_len + row.num_feed + accepted)
        live.tell(emission, self._clock(), logprobs[:emitted])
        if emission.finish_reason is not None:
            self._remove(live)

    def _apply_cancellations(self) -> None:
        cancelled, self._cancelled = self._cancelled, set()
        for live in [self._live[sequence] for sequence in cancelled if sequence in self._live]:
            self._remove(live)
            live.tell_cancelled(self._clock())

    def _fail(self, lives: Sequence[LiveRequest], error: SSDError) -> None:
        for live in lives:
            self._remove(live)
            live.tell_error(error)

    def _remove(self, live: LiveRequest) -> None:
        del self._live[live.sequence]
        self.scheduler.remove(live.sequence)
        self._speculator.forget(live.sequence)


def verify_command(rows: Sequence[BatchRow], proposals: Sequence[Proposal], together: bool) -> VerifyCommand:
    """The target's pass for these rows: pending tokens, then the proposal."""
    verified = tuple(_verify_row(row, proposal) for row, proposal in zip(rows, proposals, strict=True))
    return VerifyCommand(verified, together)


def _verify_row(row: BatchRow, proposal: Proposal) -> VerifyRow:
    sequence = row.sequence
    pending = sequence.token_ids[sequence.kv_len : sequence.kv_len + row.num_feed]
    return VerifyRow(
        token_ids=tuple(pending),
        drafts=proposal.token_ids,
        start=sequence.kv_len,
        block_table=tuple(sequence.table),
        draw=sequence.draw,
        samples=row.samples,
        text=sequence.token_ids,
        num_prompt=sequence.num_prompt,
        odds=proposal.odds,
    )

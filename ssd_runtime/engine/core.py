"""The engine's heart: rounds, one after another, on the engine's own event loop.

`run_round` is the whole of speculative speculative decoding on one screen. Everything here runs on
one loop and is never entered from another thread; requests and cancellations that arrive during a
round take effect between rounds, so that nothing a command in flight uses can change under it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import structlog

from ssd_runtime.clock import Clock
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.passes import checked_results, origin, split, verify_command
from ssd_runtime.engine.reload import Changes, Replaceable
from ssd_runtime.engine.requests import LiveRequests
from ssd_runtime.engine.scheduler import BatchRow, Plan, Scheduler
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.errors import EngineClosedError, EngineError, QueueFullError
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import RowFailure, RowResult, VerifyCommand
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import RowMode

log = structlog.get_logger(__name__)


class Branching(Protocol):
    """A build that prepares the next round's proposals while the target verifies."""

    @property
    def is_running(self) -> bool:
        """Whether the draft is still at it."""
        ...

    def stop(self) -> None:
        """Ask it to end after the draft step in hand."""
        ...


class Speculator(Protocol):
    """Where proposals come from; one implementation for each mode."""

    def note_load(self, num_requests: int) -> None: ...
    def plan(self, sequence: TokenSequence) -> tuple[RowMode, int]: ...
    def will_draft(self, rows: Sequence[BatchRow]) -> bool: ...
    async def take(self, rows: Sequence[BatchRow]) -> list[Proposal]: ...
    def will_branch(self, rows: Sequence[BatchRow]) -> bool: ...
    def branch(self, rows: Sequence[BatchRow], proposals: Sequence[Proposal]) -> Branching: ...
    async def stage(self, branching: Any, results: Sequence[RowResult]) -> None: ...
    def forget(self, sequence: TokenSequence) -> None: ...


class EngineCore:
    """Drives the rounds. `on_round` receives one record per row and verdict, `on_finish` each sequence that
    was answered to its end.

    new_blocks: the books of the target's memory, empty. num_violations: how often they were wrong.
    """

    def __init__(
        self,
        *,
        target: TargetLane,
        scheduler: Scheduler,
        new_blocks: Callable[[], BlockManager],
        speculator: Replaceable,
        clock: Clock,
        max_queue: int,
        on_round: Callable[[RoundRecord], None] = lambda record: None,
        on_finish: Callable[[TokenSequence], None] = lambda sequence: None,
    ) -> None:
        self.scheduler = scheduler
        self.target = target
        self.num_violations = 0
        self._clock = clock
        self._new_blocks = new_blocks
        self._speculator = speculator
        self._max_queue = max_queue
        self._requests = LiveRequests(
            scheduler,
            clock=clock,
            forget=speculator.forget,
            on_round=on_round,
            on_finish=on_finish,
        )
        self._cancelled: set[TokenSequence] = set()
        self._changes = Changes()
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._target_failed = False

    async def run(self) -> None:
        """Run rounds until `close`; afterwards every request has had its last word."""
        try:
            while not self._closing.is_set():
                if self.scheduler.is_idle:
                    self.check_books()
                    self._speculator.current.note_load(0)
                    await self._wake.wait()
                    self._wake.clear()
                else:
                    await self.run_round()
                self._apply_cancellations()
                self._changes.apply()
        except Exception as error:
            log.exception("the engine stopped on an error")
            self._requests.fail_all(EngineError(f"the engine stopped: {error!r}"))
            raise
        finally:
            self._closing.set()
            self._changes.close()
            self._requests.fail_all(EngineClosedError("the engine was closed"))

    async def run_round(self) -> None:
        """One round: propose, verify and meanwhile branch, commit, stage.

        Listeners are told while a lane works: the draft, at its last pass, or the target, at its next; before
        that where everybody waits for the draft first.
        """
        speculator = self._speculator.current
        speculator.note_load(self.scheduler.num_requests)
        rows = self.scheduler.next_batch(speculator.plan) or self._next_batch_anew(speculator.plan)
        self._requests.mark_scheduled(rows)
        if speculator.will_draft(rows):
            self._requests.tell()
        proposals = await speculator.take(rows)
        command = verify_command(rows, proposals, speculator.will_branch(rows))
        submitted = self._clock()
        verifying = self.target.submit(command)
        branching = speculator.branch(rows, proposals)
        self._requests.tell()
        results = await self._results(verifying, command)
        branching.stop()
        self.scheduler.pacer.note(*split(command), self._clock() - submitted)
        for row, proposal, result in zip(rows, proposals, results, strict=True):
            self._requests.commit(row, proposal, result)
        if branching.is_running or self.scheduler.is_idle:
            self._requests.tell()
        await speculator.stage(branching, results)
        if self._target_failed:
            await self._recover()

    def _next_batch_anew(self, plan: Plan) -> list[BatchRow]:
        self._reopen_books("requests wait for blocks, and nobody has any")
        rows = self.scheduler.next_batch(plan)
        if not rows:
            raise EngineError("requests wait, nothing runs, and none of them can begin")
        return rows

    def submit(self, live: LiveRequest) -> None:
        """Take a request; its listener hears everything else. Refused when closing or full."""
        if self._closing.is_set():
            live.tell_error(EngineClosedError("the engine is closing and takes no more requests"))
        elif len(self.scheduler.waiting) >= self._max_queue:
            live.tell_error(
                QueueFullError(f"{self._max_queue} requests are waiting already (scheduler.max_queue)")
            )
        else:
            self._requests.add(live)
            self._wake.set()

    def cancel(self, sequence: TokenSequence) -> None:
        """End a request between two rounds, if it is still there."""
        self._cancelled.add(sequence)
        self._wake.set()

    def between_rounds(self, change: Callable[[], None], done: Future[None]) -> None:
        """Make `change` between two rounds, soon; `done` hears of it, see `Changes`."""
        self._changes.add(change, done)
        self._wake.set()

    def close(self) -> None:
        """End after the round in hand."""
        self._closing.set()
        self.target.hurry()
        self._wake.set()

    def beat(self) -> None:
        """About a second has passed."""
        self.target.beat()

    def check_books(self) -> None:
        """Whether the target's blocks are all accounted for; where not, say so and begin new books.

        Only when nobody runs: then nobody holds any.
        """
        scheduler = self.scheduler
        try:
            scheduler.blocks.check([sequence.table for sequence in (*scheduler.running, *scheduler.waiting)])
        except AssertionError as error:
            self._reopen_books(str(error))

    def _reopen_books(self, violation: str) -> None:
        self.num_violations += 1
        log.error("the books of the KV cache are wrong; they begin anew; please report this", found=violation)
        self.scheduler.start_over(self._new_blocks())

    async def _results(self, verifying: asyncio.Future[Any], command: VerifyCommand) -> list[RowResult]:
        """The target's results; where it failed, every row's failure."""
        try:
            return checked_results(await verifying, command)
        except Exception as error:
            log.error("the target failed", rows=command.num_rows, error=repr(error), at=origin(error))
            self._target_failed = True
            return [RowFailure(f"the target model failed: {error!r}")] * command.num_rows

    async def _recover(self) -> None:
        """A fresh target with empty memory; who ran and had no part in the failure starts over."""
        self._target_failed = False
        self.scheduler.start_over(self._new_blocks())
        await self.target.restart(self._closing)

    def _apply_cancellations(self) -> None:
        if self._cancelled:
            cancelled, self._cancelled = self._cancelled, set()
            self._requests.cancel(cancelled)

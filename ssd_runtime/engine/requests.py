"""The requests in the engine, and what a verdict does to each: commit, send, count, end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ssd_runtime.clock import Clock
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.scheduler import BatchRow, Scheduler
from ssd_runtime.errors import ComputeError, RequestError, SSDError
from ssd_runtime.messages import RowFailure, RowResult, Verdict
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import FinishReason, TokenLogprob


class Untold(NamedTuple):
    """What a round added to an answer, before its text is worked out."""

    live: LiveRequest
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    logprobs: tuple[TokenLogprob, ...]


class LiveRequests:
    """Everybody who has not had the last word. Runs on the engine's loop, between two commands.

    Tokens are committed at once; what listeners get waits for `tell`, so that text is worked out and sent
    while the lanes are at work.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        clock: Clock,
        forget: Callable[[TokenSequence], None],
        on_round: Callable[[RoundRecord], None],
        on_finish: Callable[[TokenSequence], None],
    ) -> None:
        """`forget` hears of each sequence that leaves, and `on_finish` later of those that were answered to
        their end.
        """
        self._scheduler = scheduler
        self._clock = clock
        self._forget = forget
        self._on_round = on_round
        self._on_finish = on_finish
        self._live: dict[TokenSequence, LiveRequest] = {}
        self._untold: list[Untold] = []

    def add(self, live: LiveRequest) -> None:
        """Queue a request."""
        self._live[live.sequence] = live
        self._scheduler.add(live.sequence)

    def mark_scheduled(self, rows: Iterable[BatchRow]) -> None:
        """Note when each row's request was first part of a round."""
        now = self._clock()
        for row in rows:
            live = self._live[row.sequence]
            if live.scheduled is None:
                live.scheduled = now

    def commit(self, row: BatchRow, proposal: Proposal, result: RowResult) -> None:
        """Carry out what the target said of one row."""
        live = self._live[row.sequence]
        match result:
            case Verdict():
                if result.reading is not None:
                    live.read(result.reading)
                tokens = (*proposal.token_ids[: result.accepted], result.bonus)
                untold = Untold(live, *live.end.take(tokens), result.logprobs)
                self._keep(row, proposal, untold, result.accepted, result.bonus)
            case RowFailure():
                untold = Untold(live, *live.end.take(proposal.token_ids[: result.accepted]), result.logprobs)
                if untold.finish_reason is not None and untold.token_ids:
                    # what failed lies behind the end, where nobody asked
                    self._keep(row, proposal, untold, result.accepted)
                else:
                    self._fail_row(live, result)
            case _:
                live.read(result)
                row.sequence.commit([], row.sequence.kv_len + row.num_feed)

    def tell(self) -> None:
        """Send what was committed since the last time."""
        for untold in self._untold:
            live, logprobs = untold.live, untold.logprobs[: len(untold.token_ids)]
            live.tell(untold.token_ids, untold.finish_reason, self._clock(), logprobs)
            if untold.finish_reason is not None:
                self._on_finish(live.sequence)
        self._untold.clear()

    def cancel(self, sequences: Iterable[TokenSequence]) -> None:
        """End those of `sequences` that are still here."""
        self.tell()
        for live in [self._live[sequence] for sequence in sequences if sequence in self._live]:
            self._remove(live)
            live.tell_cancelled(self._clock())

    def fail_all(self, error: SSDError) -> None:
        """End everybody with `error`."""
        self.tell()
        for live in list(self._live.values()):
            self._fail(live, error)

    def _keep(
        self, row: BatchRow, proposal: Proposal, untold: Untold, verified: int, bonus: int | None = None
    ) -> None:
        """Count and keep what the end rules left of `verified` drafts and the bonus."""
        sequence, emitted = row.sequence, len(untold.token_ids)
        accepted = min(verified, emitted)
        record = RoundRecord(
            request_id=sequence.request.id,
            source=proposal.source,
            looked_up=proposal.looked_up,
            proposed=len(proposal.token_ids) if emitted > verified else emitted,
            accepted=accepted,
            emitted=emitted,
            bonus_rank=proposal.bonus_rank(verified, bonus) if proposal.guesses else None,
            mode=row.mode,
        )
        sequence.totals.add(record)
        self._on_round(record)
        sequence.commit(list(untold.token_ids), sequence.kv_len + row.num_feed + accepted)
        self._untold.append(untold)
        if untold.finish_reason is not None:
            self._remove(untold.live)

    def _fail_row(self, live: LiveRequest, failure: RowFailure) -> None:
        if failure.by_request:
            self._fail(live, RequestError(failure.message))
        else:  # its KV may be wrong, so nobody shall find it
            self._scheduler.blocks.spoil(live.sequence.table)
            self._fail(live, ComputeError(failure.message))

    def _fail(self, live: LiveRequest, error: SSDError) -> None:
        self.tell()
        self._remove(live)
        live.tell_error(error)

    def _remove(self, live: LiveRequest) -> None:
        del self._live[live.sequence]
        self._scheduler.remove(live.sequence)
        self._forget(live.sequence)

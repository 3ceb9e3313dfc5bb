"""A request while it lives in the engine: its sequence, its end, its listener, its times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ssd_runtime.engine.stopping import AnswerEnd
from ssd_runtime.errors import SSDError
from ssd_runtime.messages import Reading
from ssd_runtime.sequence import Sequence
from ssd_runtime.types import FinishReason, Output, SpeculationStats, Timing, TokenLogprob

Listener = Callable[[Output | SSDError], None]


@dataclass(slots=True, eq=False)
class LiveRequest:
    """One request from submission to its last piece. Times are seconds of the engine's clock."""

    sequence: Sequence
    end: AnswerEnd
    listener: Listener
    mode: str
    draft_weight_bytes: int
    submitted: float
    scheduled: float | None = None
    first_token: float | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    told: bool = False
    index: int = 0

    def read(self, reading: Reading | None) -> None:
        """Keep what a chunk told of the prompt; a chunk that is read again (preemption) adds nothing."""
        if reading is not None:
            known = self.prompt_logprobs or [TokenLogprob(self.sequence.token_ids[0], None)]
            self.prompt_logprobs = [*known, *reading.logprobs[len(known) - reading.first :]]

    def tell(
        self,
        token_ids: tuple[int, ...],
        reason: FinishReason | None,
        now: float,
        logprobs: tuple[TokenLogprob, ...] = (),
    ) -> None:
        """Send the listener what a round added, and its text."""
        if self.first_token is None and token_ids:
            self.first_token = now
        text = self.end.show()
        if reason is not None:
            piece = self._last(text, token_ids, reason, now)
        else:
            prompt = () if self.told else self._prompt()
            piece = Output(self.sequence.request.id, text, token_ids, None, prompt)
        if logprobs or self.index or (self.prompt_logprobs and not self.told):
            read = () if self.told else tuple(self.prompt_logprobs)
            piece = replace(piece, logprobs=logprobs, prompt_logprobs=read, index=self.index)
        self.told = True
        self.listener(piece)

    def tell_cancelled(self, now: float) -> None:
        """Send the last piece of a request that was cancelled."""
        self.listener(replace(self._last("", (), FinishReason.CANCELLED, now), index=self.index))

    def tell_error(self, error: SSDError) -> None:
        """End the request with an error."""
        self.listener(error)

    def _last(self, text: str, token_ids: tuple[int, ...], reason: FinishReason, now: float) -> Output:
        sequence = self.sequence
        return Output(
            request_id=sequence.request.id,
            text=text,
            token_ids=token_ids,
            finish_reason=reason,
            prompt_token_ids=self._prompt(),
            seed=sequence.draw.seed,
            timing=self._timing(now),
            speculation=self._speculation(),
            cached_tokens=sequence.num_cached,
        )

    def _prompt(self) -> tuple[int, ...]:
        return tuple(self.sequence.token_ids[: self.sequence.num_prompt])

    def _timing(self, now: float) -> Timing:
        scheduled = now if self.scheduled is None else self.scheduled
        first = now if self.first_token is None else self.first_token
        return Timing(
            queue_seconds=scheduled - self.submitted,
            first_token_seconds=first - self.submitted,
            decode_seconds=now - first,
            total_seconds=now - self.submitted,
        )

    def _speculation(self) -> SpeculationStats:
        totals = self.sequence.totals
        return SpeculationStats(
            mode=self.mode,
            rounds=totals.rounds,
            hits=totals.hits,
            misses=totals.misses,
            draft_tokens=totals.draft_tokens,
            accepted_tokens=totals.accepted_tokens,
            accepted_per_position=tuple(totals.accepted_per_position),
            draft_weight_bytes=self.draft_weight_bytes,
            histograms={length: tuple(counts) for length, counts in totals.histograms.items()},
        )

"""What is counted of one request while it is answered, and told when it ends."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

import structlog

from ssd_runtime.clock import Clock
from ssd_runtime.telemetry.metrics import Metrics
from ssd_runtime.telemetry.spans import Answered, Spans
from ssd_runtime.types import FinishReason, Output, Request

log = structlog.get_logger(__name__)


class Account:
    """One request's. headers: those of its HTTP request, for its span's parent."""

    def __init__(
        self,
        request: Request,
        headers: Mapping[str, str],
        metrics: Metrics,
        spans: Spans | None,
        clock: Clock,
    ) -> None:
        self._request = request
        self._headers = headers
        self._metrics = metrics
        self._spans = spans
        self._clock = clock
        self._started = time.time_ns()
        self._last: dict[int, float] = {}
        self._tokens: Counter[int] = Counter()
        self._ends: list[Output] = []

    def add(self, piece: Output) -> None:
        """Count a piece of an answer."""
        now, last = self._clock(), self._last.get(piece.index)
        self._last[piece.index] = now
        self._tokens[piece.index] += len(piece.token_ids)
        self._metrics.piece(len(piece.token_ids), None if last is None else now - last)
        if (
            piece.finish_reason is None
            or piece.finish_reason is FinishReason.CANCELLED
            or piece.timing is None
        ):
            return
        if not self._ends:
            self._metrics.asked(self._request.params, len(piece.prompt_token_ids))
        self._ends.append(piece)
        self._metrics.answered(piece.timing, self._tokens[piece.index])

    def close(self, reason: FinishReason) -> None:
        """The request has ended."""
        tokens = sum(self._tokens.values())
        self._metrics.ended(reason)
        log.debug("a request ended", finish_reason=reason.value, tokens=tokens)
        if self._spans is not None:
            ended = time.time_ns()
            answered = Answered(self._request, self._started, ended, reason, tokens, tuple(self._ends))
            self._spans.record(answered, self._headers)

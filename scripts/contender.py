"""One engine of a comparison, and everything that it answered."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from scripts.shared_models import TARGET_FORM, SharedModels
from ssd_runtime.app import Engine
from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.telemetry.trace import read_trace
from ssd_runtime.types import Answer, Request

DRAFT_LANE = "draft"


@dataclass(frozen=True, slots=True)
class Run:
    """One answer, and when it was asked for and finished, in seconds of the engine's clock."""

    answer: Answer
    started: float
    finished: float


@dataclass(slots=True)
class Contender:
    """An engine in one mode with one draft (`draft`: its form), and its answers."""

    mode: str
    draft: str
    engine: Engine
    trace: Path
    runs: dict[float, list[Run]] = field(default_factory=lambda: defaultdict(list))

    async def answer(self, temperature: float, request: Request) -> None:
        """Answer one request, alone."""
        started = monotonic()
        answer = await self.engine.complete(request)
        self.runs[temperature].append(Run(answer, started, monotonic()))

    def tokens_per_second(self, temperature: float) -> float:
        """Tokens after the first, by the time from the first to the last."""
        answers = [run.answer for run in self.runs[temperature]]
        seconds = sum(answer.timing.decode_seconds for answer in answers)
        return sum(len(answer.token_ids) - 1 for answer in answers) / max(seconds, 1e-9)

    def measured(self, temperature: float, models: SharedModels) -> dict[str, Any]:
        """Everything that was measured at one temperature; None where there is nothing to count."""
        rounds = list(self._rounds(temperature))
        totals = RoundTotals.of(rounds)
        hits = [record.proposed for record in rounds if record.hit]
        seconds = self._pass_seconds(temperature)
        answers = [run.answer for run in self.runs[temperature]]
        return {
            "temperature": temperature,
            "mode": self.mode,
            "draft": self.draft,
            "tokens_per_round": totals.mean_acceptance_length or 1.0,
            "acceptance": totals.acceptance_rate,
            "hit_rate": totals.hit_rate,
            "length_on_hits": sum(hits) / len(hits) if hits else None,
            "draft_bytes_share": self._bytes_share(models),
            "tokens_per_second": self.tokens_per_second(temperature),
            "draft_pass_ms": seconds and 1000 * seconds,
            "ceiling": seconds and 1 / seconds,
            "ids": self._digest(temperature),
            "totals": asdict(totals),
            "num_tokens": [len(answer.token_ids) for answer in answers],
            "decode_seconds": [answer.timing.decode_seconds for answer in answers],
        }

    def _rounds(self, temperature: float) -> Iterator[RoundRecord]:
        ids = {run.answer.request_id for run in self.runs[temperature]}
        return (record for record in read_trace(self.trace)[1] if record.request_id in ids)

    def _pass_seconds(self, temperature: float) -> float | None:
        """The median over builds of seconds per pass, sampling and bookkeeping included."""
        commands = [command for command in self._draft_commands(temperature) if command.passes]
        return median((c.finished - c.started) / c.passes for c in commands) if commands else None

    def _draft_commands(self, temperature: float) -> Iterator[CommandRecord]:
        for command in read_trace(self.trace)[0]:
            during = (run.started <= command.started <= run.finished for run in self.runs[temperature])
            if command.lane == DRAFT_LANE and any(during):
                yield command

    def _bytes_share(self, models: SharedModels) -> float | None:
        if self.draft == TARGET_FORM:
            return None
        return models.weight_bytes(self.draft) / models.weight_bytes(TARGET_FORM)

    def _digest(self, temperature: float) -> str:
        ids = [run.answer.token_ids for run in self.runs[temperature]]
        return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:12]

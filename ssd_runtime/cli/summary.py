"""The line at the end of `ssd-run pipe`: what was answered, how fast, and what speculation gave."""

from __future__ import annotations

from statistics import median

from ssd_runtime.clock import Clock
from ssd_runtime.stats import RoundTotals
from ssd_runtime.types import Answer, SpeculationStats


class Summary:
    """Counts answers; reading it gives the line. errors_in: where to look for what was wrong."""

    def __init__(self, clock: Clock, errors_in: str = "") -> None:
        self.answered = 0
        self.failed = 0
        self._clock = clock
        self._errors_in = errors_in
        self._start = clock()
        self._tokens = 0
        self._first_token_seconds: list[float] = []
        self._totals = RoundTotals()

    def add(self, answer: Answer) -> None:
        """Count one answered request, and all tokens that it got."""
        self.answered += 1
        self._first_token_seconds.append(answer.timing.first_token_seconds)
        for each in answer.every:
            self._tokens += len(each.token_ids)
            _add(self._totals, each.speculation)

    def add_failure(self) -> None:
        """Count one request that got no answer."""
        self.failed += 1

    def start(self) -> None:
        """Begin to count time: the engine is ready."""
        self._start = self._clock()

    def __str__(self) -> str:
        seconds = self._clock() - self._start
        rate = f": {self._tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
        where = f" ({self._errors_in})" if self.failed and self._errors_in else ""
        parts = [
            f"{counted(self.answered + self.failed, 'request')}, {self.failed} failed{where}",
            f"{counted(self._tokens, 'token')} in {seconds:.1f} s{rate}",
        ]
        if self._first_token_seconds:
            parts.append(f"first token P50 {median(self._first_token_seconds):.3f} s")
        return "; ".join([*parts, *_speculation(self._totals)])


def counted(number: int, thing: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _add(totals: RoundTotals, stats: SpeculationStats) -> None:
    totals.rounds += stats.rounds
    totals.hits += stats.hits
    totals.misses += stats.misses
    totals.draft_tokens += stats.draft_tokens
    totals.accepted_tokens += stats.accepted_tokens


def _speculation(totals: RoundTotals) -> list[str]:
    """The figures that are defined."""
    figures = {
        "acceptance rate": totals.acceptance_rate,
        "mean acceptance length": totals.mean_acceptance_length,
        "hit rate": totals.hit_rate,
    }
    return [f"{name} {value:.2f}" for name, value in figures.items() if value is not None]

"""Lines for the log, in the words in which vLLM's users search theirs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.stats import RoundTotals

INTERVAL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Sums since the start: tokens of prompts that were answered, tokens handed over, rounds."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    rounds: RoundTotals = field(default_factory=RoundTotals)


class TrafficLines:
    """Says what happened since it was asked before; nothing where nothing happened."""

    def __init__(self, now: float) -> None:
        self._before = Traffic()
        self._asked = now

    def lines(self, now: float, traffic: Traffic, engine: EngineSnapshot) -> Iterator[str]:
        """The lines of the interval that ends `now`, in seconds; `traffic` is not changed afterwards."""
        seconds, before = max(now - self._asked, 1e-9), self._before
        self._asked, self._before = now, traffic
        prompt = traffic.prompt_tokens - before.prompt_tokens
        generation = traffic.generation_tokens - before.generation_tokens
        if not prompt and not generation:
            return
        rounds = difference(traffic.rounds, before.rounds)
        yield (
            f"Avg prompt throughput: {prompt / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {generation / seconds:.1f} tokens/s, "
            f"Running: {engine.running} reqs, Waiting: {engine.waiting} reqs, "
            f"KV cache usage: {100 * engine.used_blocks / engine.num_blocks:.1f}%, "
            f"Outcome cache hit rate: {100 * (rounds.hit_rate or 0):.1f}%"
        )
        if rounds.drafts:
            yield speculation_line(rounds, seconds)


def speculation_line(rounds: RoundTotals, seconds: float) -> str:
    """vLLM's own line, word for word; `rounds` has at least one draft."""
    drafts, accepted, drafted = rounds.drafts, rounds.accepted_tokens, rounds.draft_tokens
    rates = ", ".join(f"{count / drafts:.3f}" for count in rounds.accepted_per_position)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {1 + accepted / drafts:.2f}, "
        f"Accepted throughput: {accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {drafted / seconds:.2f} tokens/s, "
        f"Accepted: {accepted} tokens, Drafted: {drafted} tokens, "
        f"Per-position acceptance rate: {rates}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )


def difference(later: RoundTotals, earlier: RoundTotals) -> RoundTotals:
    """What `later` counts beyond `earlier`."""
    return RoundTotals(
        rounds=later.rounds - earlier.rounds,
        hits=later.hits - earlier.hits,
        misses=later.misses - earlier.misses,
        draft_tokens=later.draft_tokens - earlier.draft_tokens,
        accepted_tokens=later.accepted_tokens - earlier.accepted_tokens,
        accepted_per_position=_less(later.accepted_per_position, earlier.accepted_per_position),
        histograms={
            length: _less(counts, earlier.histograms.get(length, []))
            for length, counts in later.histograms.items()
        },
    )


def _less(later: list[int], earlier: list[int]) -> list[int]:
    return [count - (earlier[place] if place < len(earlier) else 0) for place, count in enumerate(later)]

"""Metrics in Prometheus' format, under vLLM's names with the prefix `ssd:`.

The counters of speculation are sums over the round records that the trace and the answers are sums
of; see `ssd_runtime/stats.py` for what is counted. Every `Metrics` has a registry of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ssd_runtime.hooks.kinds import Observer
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.types import EngineSnapshot, Timing

PREFIX = "ssd:"
CONTENT_TYPE = CONTENT_TYPE_LATEST
LABELS = ("model_name",)
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
TOKENS = {
    "prompt_tokens": "Prompt tokens of finished requests.",
    "generation_tokens": "Tokens that were handed over.",
}
SECONDS = {
    "time_to_first_token_seconds": "Arrival to first token.",
    "inter_token_latency_seconds": "Between two pieces of an answer; a piece may carry several tokens.",
    "request_time_per_output_token_seconds": "Of a request: decode time / (tokens - 1).",
    "e2e_request_latency_seconds": "Arrival to last token.",
    "request_queue_time_seconds": "Arrival to first scheduled.",
}


class Metrics:
    """What one server counts. An engine plugin: it hears of rounds as an observer.

    `observe` runs on the engine's loop, everything else on the server's. `snapshot` gives the gauges
    when they are read.
    """

    def __init__(self, model_name: str, snapshot: Callable[[], EngineSnapshot]) -> None:
        registry = self._registry = CollectorRegistry()
        registry.register(_Engine(model_name, snapshot, self.rounds))
        self._lock = threading.Lock()
        self._totals = RoundTotals()
        self._num_drafts = 0
        self._model_name = model_name
        self._tokens = {
            name: Counter(PREFIX + name, text, LABELS, registry=registry).labels(model_name)
            for name, text in TOKENS.items()
        }
        self._seconds = {
            name: Histogram(PREFIX + name, text, LABELS, buckets=BUCKETS, registry=registry).labels(
                model_name
            )
            for name, text in SECONDS.items()
        }
        self._ended = Counter(
            f"{PREFIX}request_success",
            "Requests that ended, by the reason.",
            (*LABELS, "finished_reason"),
            registry=registry,
        )

    @hookimpl
    def ssd_register_observers(self, registry: Registry[Observer]) -> None:
        """Hear of every round of the engine that this is a plugin of."""
        registry.register("metrics", lambda: self)

    def observe(self, record: RoundRecord) -> None:
        """Count one verdict."""
        with self._lock:
            self._totals.add(record)
            self._num_drafts += record.proposed > 0

    def rounds(self) -> tuple[RoundTotals, int]:
        """The sum of all records, and how many of them had a draft."""
        with self._lock:
            positions = list(self._totals.accepted_per_position)
            return replace(self._totals, accepted_per_position=positions), self._num_drafts

    def piece(self, num_tokens: int, seconds: float | None) -> None:
        """A piece of an answer: its tokens, and the seconds since the piece before it, if there was one."""
        self._tokens["generation_tokens"].inc(num_tokens)
        if seconds is not None:
            self._seconds["inter_token_latency_seconds"].observe(seconds)

    def timing(self, timing: Timing, prompt_tokens: int, completion_tokens: int) -> None:
        """The times of a request that was answered to its end."""
        self._tokens["prompt_tokens"].inc(prompt_tokens)
        self._seconds["time_to_first_token_seconds"].observe(timing.first_token_seconds)
        self._seconds["e2e_request_latency_seconds"].observe(timing.total_seconds)
        self._seconds["request_queue_time_seconds"].observe(timing.queue_seconds)
        if completion_tokens > 1:
            per_token = timing.decode_seconds / (completion_tokens - 1)
            self._seconds["request_time_per_output_token_seconds"].observe(per_token)

    def ended(self, reason: str) -> None:
        """A request ended, for whatever reason."""
        self._ended.labels(self._model_name, reason).inc()

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)


class _Engine(Collector):
    """What is known of the engine when it is asked for."""

    def __init__(
        self,
        model_name: str,
        snapshot: Callable[[], EngineSnapshot],
        rounds: Callable[[], tuple[RoundTotals, int]],
    ) -> None:
        self._model = model_name
        self._snapshot = snapshot
        self._rounds = rounds

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not ask an engine that is not there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Gauges of the engine and counters of its rounds."""
        now = self._snapshot()
        yield self._gauge("num_requests_running", "Requests in the batch.", now.running)
        yield self._gauge("num_requests_waiting", "Requests in the queue.", now.waiting)
        used = now.used_blocks / now.num_blocks
        yield self._gauge("kv_cache_usage_perc", "Used part of the KV cache, 1 is full.", used)
        yield self._gauge("num_requests_swapped", "Requests whose KV is in host memory.", now.swapped)
        yield self._gauge("cpu_cache_usage_perc", "Used part of scheduler.swap_space.", now.swap_usage)
        yield self._preemptions(now)
        yield from self._prefixes("", now.prefix_queries, now.prefix_hits)
        yield from self._prefixes("draft_", now.draft_prefix_queries, now.draft_prefix_hits)
        totals, num_drafts = self._rounds()
        yield self._counter("spec_decode_num_drafts", "Rounds with a draft.", num_drafts)
        yield self._counter("spec_decode_num_draft_tokens", "Draft tokens verified.", totals.draft_tokens)
        yield self._counter(
            "spec_decode_num_accepted_tokens", "Draft tokens that were emitted.", totals.accepted_tokens
        )
        yield self._counter("spec_decode_cache_hits", "Proposals from the outcome cache.", totals.hits)
        yield self._counter("spec_decode_cache_misses", "Lookups that found nothing.", totals.misses)
        yield self._per_position(totals.accepted_per_position)

    def _preemptions(self, now: EngineSnapshot) -> Metric:
        text = "Requests that lost their KV to others, by what became of it."
        family = CounterMetricFamily(f"{PREFIX}num_preemptions", text, labels=[*LABELS, "mode"])
        family.add_metric([self._model, "recompute"], now.num_preemptions - now.num_swaps)
        family.add_metric([self._model, "swap"], now.num_swaps)
        return family

    def _prefixes(self, whose: str, queries: int, hits: int) -> Iterator[Metric]:
        name = f"{whose}prefix_cache"
        yield self._counter(f"{name}_queries", "Tokens looked for in the prefix cache.", queries)
        yield self._counter(f"{name}_hits", "Tokens found in the prefix cache.", hits)

    def _per_position(self, accepted: list[int]) -> Metric:
        name = f"{PREFIX}spec_decode_num_accepted_tokens_per_pos"
        text = "Draft tokens that were emitted, by place in the draft."
        family = CounterMetricFamily(name, text, labels=[*LABELS, "position"])
        for position, count in enumerate(accepted):
            family.add_metric([self._model, str(position)], count)
        return family

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=LABELS)
        family.add_metric([self._model], value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=LABELS)
        family.add_metric([self._model], value)
        return family

"""Metrics in Prometheus' format, under vLLM's names with the prefix `ssd:`.

The counters of speculation are sums over the round records that the trace and the answers are sums
of; see `ssd_runtime/stats.py` for what is counted. Every `Metrics` has a registry of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from ssd_runtime.hooks.kinds import Observer
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.telemetry.buckets import Buckets
from ssd_runtime.telemetry.engine_metrics import LABEL, PREFIX, EngineCollector
from ssd_runtime.telemetry.lanes import LaneTimes
from ssd_runtime.telemetry.traffic import Traffic
from ssd_runtime.types import SamplingParams, Timing

CONTENT_TYPE = CONTENT_TYPE_LATEST
SECONDS_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
LAG_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
TOKENS_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
CHOICES_BUCKETS = (1, 2, 5, 10, 20, 50, 100)
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
    "request_prefill_time_seconds": "First scheduled to first token.",
    "request_decode_time_seconds": "First to last token.",
    "request_inference_time_seconds": "First scheduled to last token.",
}
SIZES = {
    "request_prompt_tokens": ("Prompt tokens of a request.", TOKENS_BUCKETS),
    "request_generation_tokens": ("Tokens of an answer.", TOKENS_BUCKETS),
    "request_params_n": ("How many answers a request asked for.", CHOICES_BUCKETS),
    "request_params_max_tokens": ("The max_tokens of requests that had one.", TOKENS_BUCKETS),
}


class Metrics:
    """What one server counts. An engine plugin: it hears of rounds as an observer.

    `observe` and what `lanes` hears run on the engine's loop, everything else on the server's. `snapshot`
    gives the gauges when they are read. loop_lag: how long after its time the server's loop took something
    up, in seconds.
    """

    def __init__(self, model_name: str, snapshot: Callable[[], EngineSnapshot]) -> None:
        registry = self._registry = CollectorRegistry()
        self._model_name = model_name
        self._lock = threading.Lock()
        self._totals = RoundTotals()
        self._traffic = {"prompt_tokens": 0, "generation_tokens": 0}
        self._tokens = {
            name: Counter(PREFIX + name, text, (LABEL,), registry=registry).labels(model_name)
            for name, text in TOKENS.items()
        }
        described = {name: (text, SECONDS_BUCKETS) for name, text in SECONDS.items()} | SIZES
        self._histograms = {
            name: Histogram(PREFIX + name, text, (LABEL,), buckets=buckets, registry=registry).labels(
                model_name
            )
            for name, (text, buckets) in described.items()
        }
        self._ended = Counter(
            f"{PREFIX}request_success",
            "Requests that ended, by the reason.",
            (LABEL, "finished_reason"),
            registry=registry,
        )
        self.loop_lag = Buckets(LAG_BOUNDS)
        self.lanes = LaneTimes(Buckets(LAG_BOUNDS))
        registry.register(EngineCollector(model_name, snapshot, self.rounds, self.lanes, self.loop_lag))

    @hookimpl
    def ssd_register_observers(self, registry: Registry[Observer]) -> None:
        """Hear of every round of the engine that this is a plugin of."""
        registry.register("metrics", lambda: self)

    def observe(self, record: RoundRecord) -> None:
        """Count one verdict."""
        with self._lock:
            self._totals.add(record)

    def rounds(self) -> RoundTotals:
        """The sum of all records so far."""
        with self._lock:
            return deepcopy(self._totals)

    def traffic(self) -> Traffic:
        """What was asked and answered so far."""
        return Traffic(rounds=self.rounds(), **self._traffic)

    def piece(self, num_tokens: int, seconds: float | None) -> None:
        """A piece of an answer: its tokens, and the seconds since the piece before it, if there was one."""
        self._count("generation_tokens", num_tokens)
        if seconds is not None:
            self._histograms["inter_token_latency_seconds"].observe(seconds)

    def asked(self, params: SamplingParams, prompt_tokens: int) -> None:
        """A request whose first answer has ended: what it was."""
        self._count("prompt_tokens", prompt_tokens)
        self._histograms["request_prompt_tokens"].observe(prompt_tokens)
        self._histograms["request_params_n"].observe(params.n)
        if params.max_tokens is not None:
            self._histograms["request_params_max_tokens"].observe(params.max_tokens)

    def answered(self, timing: Timing, tokens: int) -> None:
        """An answer of so many tokens that came to its end."""
        prefill = timing.first_token_seconds - timing.queue_seconds
        seconds = {
            "time_to_first_token_seconds": timing.first_token_seconds,
            "e2e_request_latency_seconds": timing.total_seconds,
            "request_queue_time_seconds": timing.queue_seconds,
            "request_prefill_time_seconds": prefill,
            "request_decode_time_seconds": timing.decode_seconds,
            "request_inference_time_seconds": prefill + timing.decode_seconds,
            "request_generation_tokens": tokens,
        }
        if tokens > 1:
            seconds["request_time_per_output_token_seconds"] = timing.decode_seconds / (tokens - 1)
        for name, value in seconds.items():
            self._histograms[name].observe(value)

    def ended(self, reason: str) -> None:
        """A request ended, for whatever reason."""
        self._ended.labels(self._model_name, reason).inc()

    def text(self) -> bytes:
        """Everything, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def _count(self, name: str, tokens: int) -> None:
        self._tokens[name].inc(tokens)
        self._traffic[name] += tokens

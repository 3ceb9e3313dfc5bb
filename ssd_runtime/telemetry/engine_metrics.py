"""What Prometheus is told of an engine at the moment when it asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.stats import RoundTotals
from ssd_runtime.telemetry.buckets import Buckets
from ssd_runtime.telemetry.lanes import LaneTimes

PREFIX = "ssd:"
LABEL = "model_name"

Values = Mapping[Any, float]
"""Values by the texts of their labels."""
_Read = Callable[[EngineSnapshot], float]
GAUGES: Mapping[str, tuple[str, _Read]] = {
    "num_requests_running": ("Requests in the batch.", lambda now: now.running),
    "num_requests_waiting": ("Requests in the queue.", lambda now: now.waiting),
    "num_requests_swapped": ("Requests whose KV is in host memory.", lambda now: now.swapped),
    "kv_cache_usage_perc": (
        "Used part of the KV cache, 1 is full.",
        lambda now: now.used_blocks / now.num_blocks,
    ),
    "cpu_cache_usage_perc": ("Used part of scheduler.swap_space.", lambda now: now.swap_usage),
}
COUNTERS: Mapping[str, tuple[str, _Read]] = {
    "prefix_cache_queries": ("Tokens looked for in the prefix cache.", lambda now: now.prefix_queries),
    "prefix_cache_hits": ("Tokens found in the prefix cache.", lambda now: now.prefix_hits),
    "draft_prefix_cache_queries": ("The same of the draft's.", lambda now: now.draft_prefix_queries),
    "draft_prefix_cache_hits": ("The same of the draft's.", lambda now: now.draft_prefix_hits),
    "kv_cache_violations": ("How often the KV cache's books were wrong.", lambda now: now.num_violations),
    "spec_decode_num_branches": ("Outcomes with a prepared proposal.", lambda now: now.num_branches),
}
ROUNDS: Mapping[str, tuple[str, Callable[[RoundTotals], float]]] = {
    "spec_decode_num_drafts": ("Rounds with a draft.", lambda totals: totals.drafts),
    "spec_decode_num_draft_tokens": ("Draft tokens verified.", lambda totals: totals.draft_tokens),
    "spec_decode_num_accepted_tokens": (
        "Draft tokens that were emitted.",
        lambda totals: totals.accepted_tokens,
    ),
    "spec_decode_cache_hits": ("Proposals from the outcome cache.", lambda totals: totals.hits),
    "spec_decode_cache_misses": ("Lookups that found nothing.", lambda totals: totals.misses),
}


class EngineCollector(Collector):
    """Families of one engine; nothing is kept between two scrapes."""

    def __init__(
        self,
        model_name: str,
        snapshot: Callable[[], EngineSnapshot],
        rounds: Callable[[], RoundTotals],
        lanes: LaneTimes,
        loop_lag: Buckets,
    ) -> None:
        self._model = model_name
        self._snapshot = snapshot
        self._rounds = rounds
        self._lanes = lanes
        self._loop_lag = loop_lag

    def describe(self) -> list[Metric]:
        """Nothing: the registry need not ask an engine that is not there yet."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Gauges of the engine, counters of its rounds and lanes."""
        now, totals = self._snapshot(), self._rounds()
        for name, (text, read) in GAUGES.items():
            yield self._gauge(name, text, {(): read(now)})
        for name, (text, read) in COUNTERS.items():
            yield self._counter(name, text, {(): read(now)})
        for name, (text, count) in ROUNDS.items():
            yield self._counter(name, text, {(): count(totals)})
        hit_rate = {} if totals.hit_rate is None else {(): totals.hit_rate}
        yield self._gauge("spec_decode_cache_hit_rate", "Hits by lookups since the start.", hit_rate)
        yield from self._by_label(now, totals)
        yield from self._of_lanes()

    def _by_label(self, now: EngineSnapshot, totals: RoundTotals) -> Iterator[Metric]:
        positions = {(str(place),): count for place, count in enumerate(totals.accepted_per_position)}
        text = "Draft tokens that were emitted, by place in the draft."
        yield self._counter("spec_decode_num_accepted_tokens_per_pos", text, positions, "position")
        modes = {(mode,): count for mode, count in now.rounds_by_mode.items()}
        yield self._counter("rounds", "Rounds of rows, by how they were run.", modes, "mode")
        kept = {("recompute",): now.num_preemptions - now.num_swaps, ("swap",): now.num_swaps}
        text = "Requests that lost their KV to others, by what became of it."
        yield self._counter("num_preemptions", text, kept, "mode")
        parts = dict.fromkeys(now.parts.items(), 1)
        yield self._gauge("part_state", "1 for the state that a part is in.", parts, "part", "state")
        lanes = {(name, lane.status): 1 for name, lane in now.lanes.items()}
        yield self._gauge("lane_state", "1 for the state that a lane is in.", lanes, "lane", "state")
        restarts = {(name,): lane.num_restarts for name, lane in now.lanes.items()}
        yield self._counter("lane_restarts", "Fresh lanes in place of others.", restarts, "lane")

    def _of_lanes(self) -> Iterator[Metric]:
        lanes = self._lanes
        busy = {(lane,): seconds for lane, seconds in lanes.busy_seconds.items()}
        yield self._counter("lane_busy_seconds", "Time in which a lane worked.", busy, "lane")
        yield self._counter("lane_commands", "What a lane carried out.", lanes.commands, "lane", "kind")
        text = "Time of verifications in which the draft did nothing."
        yield self._counter("draft_idle_seconds", text, {(): lanes.draft_idle_seconds})
        text = "How long after its time an event loop took up what was due."
        lag = HistogramMetricFamily(f"{PREFIX}event_loop_lag_seconds", text, labels=[LABEL, "loop"])
        for loop, buckets in (("server", self._loop_lag), ("engine", lanes.loop_lag)):
            lag.add_metric([self._model, loop], buckets.cumulative(), buckets.sum)
        yield lag

    def _gauge(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(GaugeMetricFamily(PREFIX + name, text, labels=[LABEL, *labels]), values)

    def _counter(self, name: str, text: str, values: Values, *labels: str) -> Metric:
        return self._filled(CounterMetricFamily(PREFIX + name, text, labels=[LABEL, *labels]), values)

    def _filled(self, family: Any, values: Values) -> Metric:
        for labels, value in values.items():
            family.add_metric([self._model, *labels], value)
        filled: Metric = family
        return filled

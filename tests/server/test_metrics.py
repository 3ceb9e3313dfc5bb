"""`/metrics`: parsed as Prometheus parses it, and equal to the sums over the trace."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import Settings
from ssd_runtime.snapshots import EngineSnapshot, LaneSnapshot
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.telemetry.metrics import Metrics
from ssd_runtime.telemetry.trace import read_trace
from ssd_runtime.testing.asgi import get, post, served
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Timing

HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_params_max_tokens",
)
FROM_VLLM = {
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_swapped",
    "kv_cache_usage_perc",
    "cpu_cache_usage_perc",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    *(f"{name}_count" for name in HISTOGRAMS),
}
"""Dashboards know them; only the prefix is ours."""
OURS = {
    "spec_decode_cache_hits_total",
    "spec_decode_cache_misses_total",
    "spec_decode_cache_hit_rate",
    "spec_decode_num_branches_total",
    "draft_prefix_cache_queries_total",
    "draft_prefix_cache_hits_total",
    "kv_cache_violations_total",
    "rounds_total",
    "part_state",
    "lane_state",
    "lane_restarts_total",
    "lane_busy_seconds_total",
    "lane_commands_total",
    "draft_idle_seconds_total",
    "event_loop_lag_seconds_count",
}
DOCUMENT = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")


def parsed(text: str) -> dict[str, float]:
    """Every sample of every series of ours; a position or a reason is part of the name."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert all(sample.name.startswith("ssd:") for sample in samples)
    assert {sample.labels["model_name"] for sample in samples} <= {"smollm2-135m"}
    return {
        " ".join(
            [sample.name.removeprefix("ssd:"), *(sample.labels[key] for key in EXTRA if key in sample.labels)]
        ): sample.value
        for sample in samples
    }


EXTRA = ("position", "finished_reason", "mode", "part", "lane", "kind", "state", "loop", "le")
DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "config" / "grafana-dashboard.json").read_text(encoding="utf-8")
)
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


async def test_counters_of_speculation_are_the_sums_over_the_trace(tmp_path: Path) -> None:
    """The same records, seen by another observer; the warm-up is in both."""
    trace = tmp_path / "trace.json"
    service = Service(Settings())
    engine = toy_engine(
        "scheduler.policy=ssd", "engine.draft_model=toy/1", plugins=[service.metrics], trace=trace
    )
    async with served(engine, service) as (app, _):
        for seed in range(4):
            body = {"prompt": "count me", "max_tokens": 30, "seed": seed, "ignore_eos": True}
            assert (await post(app, "/v1/completions", body)).status == 200
        found = parsed((await get(app, "/metrics")).body.decode())
    _, rounds = read_trace(trace)
    totals = RoundTotals.of(rounds)
    assert totals.accepted_tokens > 0
    assert found["spec_decode_num_drafts_total"] == sum(record.proposed > 0 for record in rounds)
    assert found["spec_decode_num_draft_tokens_total"] == totals.draft_tokens
    assert found["spec_decode_num_accepted_tokens_total"] == totals.accepted_tokens
    assert found["spec_decode_cache_hits_total"] == totals.hits
    assert found["spec_decode_cache_misses_total"] == totals.misses
    per_position = [
        found[f"spec_decode_num_accepted_tokens_per_pos_total {position}"]
        for position in range(len(totals.accepted_per_position))
    ]
    assert per_position == totals.accepted_per_position
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (32, 120)
    assert found["request_success_total length"] == 4
    assert found["time_to_first_token_seconds_count"] == 4


async def measured() -> str:
    """`/metrics` of a daemon that has answered something, with everything wired as `ssd-run` does."""
    service = Service(Settings())
    chosen = ("scheduler.policy=ssd", "engine.draft_model=toy/1")
    engine = toy_engine(*chosen, plugins=[service.metrics], trace=service.metrics.lanes)
    async with served(engine, service) as (app, _):
        body = {"prompt": "count me", "max_tokens": 30, "ignore_eos": True, "stream": True}
        assert (await post(app, "/v1/completions", body)).status == 200
        return (await get(app, "/metrics")).body.decode()


async def test_every_name_is_there_and_documented() -> None:
    """Those that dashboards know from vLLM, under our prefix; and those that only we have."""
    found = {name.split(" ")[0] for name in parsed(await measured())}
    assert found >= FROM_VLLM | OURS
    counted = {name for name in found if not name.endswith(("_bucket", "_sum", "_created"))}
    assert counted == FROM_VLLM | OURS
    assert [name for name in FROM_VLLM | OURS if f"`{name.removesuffix('_count')}`" not in DOCUMENT] == []


async def test_the_dashboard_asks_for_what_is_there() -> None:
    """Every metric and label of its queries, and every metric of ours is asked for."""
    samples = [
        sample for family in text_string_to_metric_families(await measured()) for sample in family.samples
    ]
    labels: dict[str, set[str]] = {}
    for sample in samples:
        labels.setdefault(sample.name, set()).update(sample.labels)
    asked = set()
    for query in QUERIES:
        names = set(re.findall(r"ssd:\w+", query))
        assert names <= labels.keys(), query
        used = set(re.findall(r"(\w+)\s*(?:=~|!=|=)", query))
        used |= {name for group in re.findall(r"(?:by|on) \(([^)]*)\)", query) for name in group.split(", ")}
        assert used <= set.union(*(labels[name] for name in names)), query
        asked |= {name.removeprefix("ssd:").replace("_bucket", "_count") for name in names}
    assert asked | {"request_params_n_count"} == FROM_VLLM | OURS


def test_a_snapshot_is_what_the_gauges_say() -> None:
    """Requests, memory, the states of parts and lanes."""
    snapshot = EngineSnapshot(
        running=2,
        waiting=3,
        used_blocks=1,
        num_blocks=4,
        parts={"draft": "stuck"},
        lanes={"draft": LaneSnapshot("stuck", 2)},
        rounds_by_mode={"ssd": 5, "autoregressive": 0},
        num_branches=9,
    )
    found = parsed(Metrics("smollm2-135m", lambda: snapshot).text().decode())
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (2, 3)
    assert (found["kv_cache_usage_perc"], found["spec_decode_num_branches_total"]) == (0.25, 9)
    assert (found["part_state draft stuck"], found["lane_state draft stuck"]) == (1, 1)
    assert (found["lane_restarts_total draft"], found["rounds_total ssd"]) == (2, 5)


def test_the_hit_rate_is_not_there_before_a_lookup() -> None:
    """Then it is hits by lookups, whatever else was drafted."""
    metrics = Metrics("smollm2-135m", EngineSnapshot)
    assert "spec_decode_cache_hit_rate" not in parsed(metrics.text().decode())
    for source, looked_up in (("cache", True), ("ngram", True), ("cache", True), ("draft", False)):
        metrics.observe(RoundRecord("a", source, looked_up, 2, 1, 2))
    assert parsed(metrics.text().decode())["spec_decode_cache_hit_rate"] == 2 / 3


async def test_a_requests_size_is_counted_once_however_many_answers_it_has() -> None:
    """The prompt once, each answer by itself."""
    service = Service(Settings())
    async with served(toy_engine(plugins=[service.metrics]), service) as (app, _):
        body = {"prompt": "HELLO", "max_tokens": 4, "ignore_eos": True, "n": 3}
        assert (await post(app, "/v1/completions", body)).status == 200
        found = parsed((await get(app, "/metrics")).body.decode())
    assert (found["request_prompt_tokens_count"], found["request_prompt_tokens_sum"]) == (1, 5)
    assert (found["request_generation_tokens_count"], found["request_generation_tokens_sum"]) == (3, 12)
    assert (found["request_params_n_sum"], found["request_params_max_tokens_sum"]) == (3, 4)
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (5, 12)
    parts = [found[f"request_{name}_time_seconds_sum"] for name in ("prefill", "decode")]
    assert found["request_inference_time_seconds_sum"] == pytest.approx(sum(parts))


def test_preemptions_are_counted_by_what_became_of_the_kv() -> None:
    """Swapped or recomputed; together they are all."""
    snapshot = EngineSnapshot(num_preemptions=5, num_swaps=2, swapped=1, swap_usage=0.25)
    found = parsed(Metrics("smollm2-135m", lambda: snapshot).text().decode())
    assert (found["num_preemptions_total recompute"], found["num_preemptions_total swap"]) == (3, 2)
    assert (found["num_requests_swapped"], found["cpu_cache_usage_perc"]) == (1, 0.25)


def test_a_round_without_a_draft_is_no_draft() -> None:
    """It is a round all the same."""
    metrics = Metrics("m", EngineSnapshot)
    metrics.observe(RoundRecord("a", "none", True, 0, 0, 1))
    totals = metrics.rounds()
    assert (totals.rounds, totals.misses, totals.drafts) == (1, 1, 0)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.integers(0, 5).flatmap(lambda proposed: st.tuples(st.just(proposed), st.integers(0, proposed))),
        max_size=8,
    )
)
def test_no_counter_ever_falls(rounds: list[tuple[int, int]]) -> None:
    """Case B67: whatever was proposed and accepted, nothing included."""
    metrics, before = Metrics("smollm2-135m", EngineSnapshot), dict[str, float]()
    for proposed, accepted in rounds:
        source = "cache" if proposed else "none"
        metrics.observe(RoundRecord("a", source, True, proposed, accepted, accepted + 1))
        metrics.piece(accepted + 1, None)
        now = parsed(metrics.text().decode())
        assert all(now[name] >= value >= 0 for name, value in before.items() if "_total" in name)
        before = now


def test_time_per_token_needs_two_tokens() -> None:
    """With one token there is no time between tokens, and no division by zero."""
    metrics = Metrics("smollm2-135m", EngineSnapshot)
    metrics.answered(Timing(0.1, 0.2, 3.0, 3.2), tokens=1)
    metrics.answered(Timing(0.1, 0.2, 3.0, 3.2), tokens=4)
    found = parsed(metrics.text().decode())
    assert found["request_time_per_output_token_seconds_count"] == 1
    assert found["request_time_per_output_token_seconds_sum"] == 1.0


def test_two_servers_count_apart() -> None:
    """Several engines may live in one process."""
    one, other = Metrics("a", EngineSnapshot), Metrics("a", EngineSnapshot)
    one.ended("stop")
    assert b"request_success_total{" in one.text()
    assert b"request_success_total{" not in other.text()


async def test_a_known_beginning_is_counted_and_told() -> None:
    """The same prompt twice: `cached_tokens` of the second, whole and streamed, are the hits of the cache."""
    service = Service(Settings())
    engine = toy_engine("scheduler.policy=ssd", "engine.draft_model=toy/1", "engine.block_size=4")
    body = {"prompt": "BEGIN ALIKE", "max_tokens": 4, "seed": 1, "ignore_eos": True}
    async with served(engine, service) as (app, _):
        before = engine.snapshot()
        cold = (await post(app, "/v1/completions", body)).json()
        warm = (await post(app, "/v1/completions", body)).json()
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = (await post(app, "/v1/completions", body | streaming)).events()
        found = parsed((await get(app, "/metrics")).body.decode())
    assert warm["choices"][0]["token_ids"] == cold["choices"][0]["token_ids"]
    details = [each["usage"]["prompt_tokens_details"] for each in (cold, warm, last)]
    assert details == [{"cached_tokens": 0}, {"cached_tokens": 8}, {"cached_tokens": 8}]
    assert found["prefix_cache_queries_total"] - before.prefix_queries == 33
    assert found["prefix_cache_hits_total"] - before.prefix_hits == 16
    assert found["draft_prefix_cache_hits_total"] >= 8

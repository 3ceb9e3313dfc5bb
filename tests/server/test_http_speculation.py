"""What an answer says of speculation: vLLM's `metrics`, OpenAI's usage, and our own field agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp

from ssd_runtime.server.answers import speculative_decoding
from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import SpeculationStats

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "HELLO", "max_tokens": 30, "ignore_eos": True, "seed": 3, "temperature": 1}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(name="app")
async def toy_app() -> AsyncIterator[ASGIApp]:
    async with served(toy_engine("scheduler.policy=speculative", "engine.draft_model=toy/5")) as (app, _):
        yield app


async def asked(app: ASGIApp, **fields: Any) -> Any:
    exchange = await post(app, COMPLETIONS, BODY | fields)
    assert exchange.status == 200, exchange.body
    return exchange.events() if fields.get("stream") else exchange.json()


async def test_three_accounts_of_one_answer_agree(app: ASGIApp) -> None:
    """Over rounds that had a draft: their number, what was drafted, what was accepted, and how often."""
    body = await asked(app)
    told, own = body["metrics"]["speculative_decoding"], body["speculation"]
    details = body["usage"]["completion_tokens_details"]
    histogram = told["acceptance_histogram"]
    assert sum(histogram) == told["num_spec_steps"] > 0
    assert sum(count * accepted for accepted, count in enumerate(histogram)) == own["accepted_tokens"]
    assert (
        told["num_accepted_draft_tokens"] == own["accepted_tokens"] == details["accepted_prediction_tokens"]
    )
    assert told["num_draft_tokens"] == own["draft_tokens"]
    assert details["rejected_prediction_tokens"] == own["draft_tokens"] - own["accepted_tokens"]
    assert told["mean_acceptance_length"] == 1 + own["accepted_tokens"] / told["num_spec_steps"]
    assert told["draft_acceptance_rate"] == own["accepted_tokens"] / own["draft_tokens"]
    assert len(histogram) == told["num_spec_tokens"] + 1 == 7


async def test_the_histograms_by_length_are_the_whole_one(app: ASGIApp) -> None:
    """The last drafts are shorter: they have rows of their own."""
    told = (await asked(app))["metrics"]["speculative_decoding"]
    by_length = told["acceptance_histogram_by_draft_length"]
    assert all(len(counts) == int(length) + 1 for length, counts in by_length.items())
    summed = [sum(counts[j] for counts in by_length.values() if j < len(counts)) for j in range(7)]
    assert summed == told["acceptance_histogram"]


async def test_a_stream_tells_it_beside_the_usage(app: ASGIApp) -> None:
    """Where vLLM's clients look for it, with the same figures as the whole answer."""
    *pieces, last = await asked(app, **USAGE)
    assert last["metrics"] == (await asked(app))["metrics"]
    assert all("metrics" not in piece for piece in pieces)


@pytest.mark.parametrize("fields", [{"n": 2}, {"speculation": {"enabled": False}}], ids=str)
async def test_where_it_means_nothing_it_is_null(app: ASGIApp, fields: dict[str, Any]) -> None:
    """Several answers have no one figure, and without speculation there is none."""
    assert (await asked(app, **fields))["metrics"] == {"speculative_decoding": None}
    assert (await asked(app, **fields, **USAGE))[-1]["metrics"] == {"speculative_decoding": None}


def test_without_a_single_draft_there_is_no_division_by_zero() -> None:
    """As vLLM has it: one token a round, nothing accepted of nothing."""
    told = speculative_decoding(SpeculationStats(mode="ssd", rounds=4), 3)
    assert told is not None
    assert (told["mean_acceptance_length"], told["draft_acceptance_rate"]) == (1.0, 0.0)
    assert (told["acceptance_histogram"], told["num_spec_steps"]) == ([0, 0, 0, 0], 0)


async def test_an_answer_and_its_error_have_the_id_of_the_log(app: ASGIApp) -> None:
    """In a header, where OpenAI's clients look for it."""
    for fields in ({}, {"stream": True}):
        exchange = await post(app, COMPLETIONS, BODY | fields)
        assert exchange.headers["x-request-id"].encode() in exchange.body
    refused = await post(app, COMPLETIONS, BODY | {"max_tokens": 10**6})
    assert refused.headers["x-request-id"].startswith("cmpl-")

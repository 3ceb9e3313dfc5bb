"""Requests that end early: clients that go away, deadlines, full queues, and the daemon's stop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from starlette.types import ASGIApp

from ssd_runtime.app import Engine
from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import ServerSettings, Settings
from ssd_runtime.testing.asgi import Exchange, get, post, served
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.fake_engine import FakeEngine, Step
from ssd_runtime.types import Request

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "tell me", "max_tokens": 400, "temperature": 1, "ignore_eos": True}
STREAM = {"stream": True}


def never(request: Request) -> Iterable[Step]:
    return [] if request.id == "warm-up" else ["first", asyncio.Event()]


def start(app: ASGIApp, body: dict[str, Any]) -> Exchange:
    return Exchange(app, "POST", COMPLETIONS, body)


async def until(condition: Callable[[], bool]) -> None:
    """Let the others work until `condition` holds; the test's time limit is the only other end."""
    while not condition():  # noqa: ASYNC110  # what is waited for happens on the engine's thread
        await asyncio.sleep(0)


def is_idle(engine: Engine) -> bool:
    """Whether nothing runs, waits or holds memory."""
    now = engine.snapshot()
    return not (now.running or now.waiting or now.used_blocks)


class TestClientsThatGo:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_request_ends_when_its_client_goes(self, stream: bool) -> None:
        """Whether or not it is sent as it comes."""
        engine = FakeEngine(never)
        async with served(engine) as (app, service):
            exchange = start(app, {"prompt": "a", "stream": stream})
            await asyncio.sleep(0)
            exchange.disconnect()
            await exchange.done()
            assert (engine.running, service.active) == (0, 0)
            assert len(engine.cancelled) == 1
            text = service.metrics.text().decode()
        assert 'request_success_total{finished_reason="cancelled",model_name="smollm2-135m"} 1.0' in text

    async def test_a_client_that_goes_in_the_midst_of_a_stream_frees_everything(self) -> None:
        """Rounds are running; within one of them the request is gone."""
        engine = toy_engine("scheduler.policy=ssd", "engine.draft_model=toy/1")
        async with served(engine, Service(Settings())) as (app, _):
            exchange = start(app, {**LONG, **STREAM})
            await exchange.until(b"\n\n")
            assert engine.snapshot().used_blocks > 0
            exchange.disconnect()
            await asyncio.wait_for(exchange.done(), 1)
            await asyncio.wait_for(until(lambda: is_idle(engine)), 1)

    async def test_a_client_that_goes_while_it_is_queued_leaves_the_queue(self) -> None:
        """The one that runs is not touched."""
        engine = toy_engine("engine.max_batch_size=1", "scheduler.policy=autoregressive")
        async with served(engine, Service(Settings())) as (app, _):
            running = start(app, {**LONG, **STREAM})
            await running.until(b"\n\n")
            queued = start(app, LONG)
            await until(lambda: engine.snapshot().waiting > 0)
            queued.disconnect()
            await asyncio.wait_for(queued.done(), 1)
            assert (await running.done()).events()[-1]["choices"][0]["finish_reason"] == "length"
            await until(lambda: is_idle(engine))

    async def test_a_client_that_goes_during_the_prefill_frees_its_blocks(self) -> None:
        """A long prompt is read in chunks; the request ends between two of them."""
        engine = toy_engine("scheduler.max_batch_tokens=8", "scheduler.policy=autoregressive")
        async with served(engine, Service(Settings())) as (app, _):
            exchange = start(app, {**LONG, "prompt": "x" * 400, "max_tokens": 10, **STREAM})
            await until(lambda: engine.snapshot().running > 0)
            exchange.disconnect()
            await asyncio.wait_for(exchange.done(), 1)
            await asyncio.wait_for(until(lambda: is_idle(engine)), 1)
            assert exchange.body == b""


class TestLimits:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_request_that_takes_too_long_is_ended(self, stream: bool) -> None:
        """With 504 before the first byte, with an event after it."""
        engine = FakeEngine(never)
        service = Service(Settings(server=ServerSettings(request_timeout=0.05)))
        async with served(engine, service) as (app, _):
            exchange = await post(app, COMPLETIONS, {"prompt": "a", "stream": stream})
        assert exchange.status == (200 if stream else 504)
        assert b"server.request_timeout" in exchange.body
        assert len(engine.cancelled) == 1

    async def test_a_full_queue_is_429(self) -> None:
        """And says when to come again; those that wait are served."""
        engine = toy_engine(
            "engine.max_batch_size=1", "scheduler.max_queue=1", "scheduler.policy=autoregressive"
        )
        async with served(engine, Service(Settings())) as (app, _):
            running = start(app, {**LONG, **STREAM})
            await running.until(b"\n\n")
            waiting = start(app, {**LONG, "max_tokens": 3})
            await until(lambda: engine.snapshot().waiting > 0)
            refused = await post(app, COMPLETIONS, LONG)
            assert (refused.status, refused.json()["error"]["code"]) == (429, "queue_full")
            assert refused.headers["retry-after"] == "1"
            assert (await waiting.done()).status == 200
            await running.done()


class TestStop:
    async def test_a_stop_waits_for_what_runs_and_takes_nothing_new(self) -> None:
        """New requests get 503; the running one is answered in full."""
        go = asyncio.Event()
        engine = FakeEngine(lambda request: [] if request.id == "warm-up" else ["a", go, "b"])
        async with served(engine) as (app, service):
            exchange = start(app, {"prompt": "a", "stream": True})
            await exchange.until(b"\n\n")
            draining = asyncio.create_task(service.drain(60))
            await asyncio.sleep(0)
            assert (await post(app, COMPLETIONS, {"prompt": "b"})).status == 503
            assert (await get(app, "/ready")).json()["status"] == "stopping"
            assert (await get(app, "/health")).status == 200
            go.set()
            assert await draining == 0
        texts = [event["choices"][0]["text"] for event in (await exchange.done()).events()]
        assert texts == ["a", "b", ""]

    async def test_what_still_runs_at_the_end_is_cancelled_and_told(self) -> None:
        """As an event where the answer had begun, as 503 where it had not; and they are counted."""
        engine = FakeEngine(never)
        async with served(engine) as (app, service):
            streamed = start(app, {"prompt": "a", "stream": True})
            whole = start(app, {"prompt": "a"})
            await streamed.until(b"\n\n")
            assert await service.drain(0) == 2
            await streamed.done()
            assert b"the server is stopping" in streamed.body
            assert b"[DONE]" not in streamed.body
            assert (await whole.done()).status == 503
        assert len(engine.cancelled) == 2


MIXED: list[dict[str, Any]] = [
    {
        "prompt": f"request {number}",
        "max_tokens": 8 + number % 23,
        "temperature": (0, 0.7, 1.3)[number % 3],
        "top_p": (1, 0.8)[number % 2],
        "seed": number,
        "stream": number % 2 == 0,
        "ignore_eos": number % 5 == 0,
        "speculation": {"mode": ("ssd", "speculative", "autoregressive")[number % 3]},
    }
    for number in range(64)
]


def ids(exchange: Exchange) -> list[int]:
    """The token ids of a finished exchange, streamed or not."""
    answers = exchange.events() if exchange.headers["content-type"].startswith("text/event") else None
    parts = answers if answers is not None else [exchange.json()]
    return [token for part in parts for token in part["choices"][0]["token_ids"]]


@pytest.mark.parametrize(
    "order", [0, *(pytest.param(order, marks=pytest.mark.slow) for order in range(1, 5))]
)
async def test_who_is_dropped_and_when_changes_nobody_elses_answer(order: int) -> None:
    """64 requests, 16 clients, a seventh dropped at random points: survivors answer as they do alone."""
    chance = random.Random(order)
    shuffled = chance.sample(MIXED, len(MIXED))
    service = Service(Settings())
    overrides = ("scheduler.policy=ssd", "engine.draft_model=toy/1", "engine.max_batch_size=6")
    engine = toy_engine(*overrides, plugins=[service.metrics])
    together: dict[int, list[int]] = {}

    async def client(app: ASGIApp, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            exchange = start(app, body)
            if body["seed"] % 7 == 0:
                await some_rounds(service, chance.randrange(40), exchange)
                exchange.disconnect()
                await exchange.done()
            else:
                together[body["seed"]] = ids(await exchange.done())

    async with served(engine, service) as (app, _):
        await asyncio.gather(*(client(app, shuffled[first::16]) for first in range(16)))
        await asyncio.wait_for(until(lambda: is_idle(engine)), 1)
        assert service.active == 0
        survivors = [body for body in MIXED if body["seed"] % 7]
        alone = {body["seed"]: ids(await post(app, COMPLETIONS, body)) for body in survivors}
    assert together == alone


async def some_rounds(service: Service, count: int, exchange: Exchange) -> None:
    """Wait for `count` rounds of anybody, or for the end of `exchange`."""
    last = service.metrics.rounds().rounds + count
    await until(lambda: exchange.is_done or service.metrics.rounds().rounds >= last)

"""What the daemon answers: OpenAI's shapes, whole and streamed, and our own fields beside them."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.server.service import Service
from ssd_runtime.settings.schema import Settings
from ssd_runtime.testing.asgi import get, post, served
from ssd_runtime.testing.fake_engine import FakeEngine
from ssd_runtime.types import Message, Mode, Request

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL = "smollm2-135m"
HELLO = {"messages": [{"role": "user", "content": "hello there you"}]}


async def asked(path: str, body: dict[str, Any]) -> Request:
    """The request that the engine gets."""
    engine = FakeEngine()
    async with served(engine) as (app, _):
        exchange = await post(app, path, body)
    assert exchange.status == 200, exchange.body
    return engine.requests[-1]


class TestWhole:
    async def test_a_completion_has_openais_shape(self) -> None:
        """And beside it the token ids, the seed, the times and what speculation did."""
        async with served(FakeEngine()) as (app, _):
            exchange = await post(app, COMPLETIONS, {"model": MODEL, "prompt": "a b", "seed": 7})
        body = exchange.json()
        assert (exchange.status, body["object"], body["model"]) == (200, "text_completion", MODEL)
        assert body["id"].startswith("cmpl-")
        assert body["choices"] == [
            {"index": 0, "text": "a b", "logprobs": None, "finish_reason": "stop", "token_ids": [1, 2]}
        ]
        assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 2)
        assert body["usage"]["total_tokens"] == 5
        assert (body["seed"], body["timing"]["total_seconds"]) == (7, 2.0)
        assert body["speculation"]["rounds"] == 2

    async def test_a_chat_completion_has_openais_shape(self) -> None:
        """The answer is a message of the assistant."""
        async with served(FakeEngine()) as (app, _):
            body = (await post(app, CHAT, HELLO)).json()
        assert body["object"] == "chat.completion"
        assert body["id"].startswith("chatcmpl-")
        assert body["choices"][0]["message"] == {
            "role": "assistant",
            "content": "hello there you",
            "refusal": None,
        }


class TestStream:
    async def test_a_chat_stream_is_role_pieces_reason_and_done(self) -> None:
        """The deltas joined are the answer; the last piece has the reason and the statistics."""
        async with served(FakeEngine()) as (app, _):
            exchange = await post(app, CHAT, {**HELLO, "stream": True})
        assert exchange.headers["content-type"].startswith("text/event-stream")
        events = exchange.events()
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[0] == {"role": "assistant", "content": "hello"}
        assert "".join(delta["content"] for delta in deltas) == "hello there you"
        assert [event["choices"][0]["finish_reason"] for event in events] == [None, None, None, "stop"]
        assert "speculation" in events[-1]
        assert all("usage" not in event for event in events)
        assert len({event["id"] for event in events}) == 1

    async def test_usage_comes_in_an_event_of_its_own_when_asked_for(self) -> None:
        """It is the last one, has no choices, and all others have the field as null."""
        body = {"prompt": "a b", "stream": True, "stream_options": {"include_usage": True}}
        async with served(FakeEngine()) as (app, _):
            *events, last = (await post(app, COMPLETIONS, body)).events()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == 2
        assert [event["usage"] for event in events] == [None] * 3
        assert "".join(event["choices"][0]["text"] for event in events) == "a b"

    @pytest.mark.parametrize("beside", [{}, {"include_usage": True}])
    async def test_every_event_has_the_tokens_so_far_when_asked_for(self, beside: dict[str, bool]) -> None:
        """vLLM's option, which load generators send; the whole usage is another matter."""
        options = {"continuous_usage_stats": True, **beside}
        body = {"prompt": "a b", "stream": True, "stream_options": options}
        async with served(FakeEngine()) as (app, _):
            events = (await post(app, COMPLETIONS, body)).events()
        counted = [event["usage"] for event in events[:3]]
        assert [usage["completion_tokens"] for usage in counted] == [1, 2, 2]
        assert {usage["prompt_tokens"] for usage in counted} == {3}
        assert [usage["total_tokens"] for usage in counted] == [4, 5, 5]
        assert [event["choices"] for event in events[3:]] == [[]] * len(beside)


class TestRequests:
    @pytest.mark.parametrize("prompt", ["a b", ["a b"]])
    async def test_a_completion_continues_the_text_as_it_stands(self, prompt: object) -> None:
        """No chat template; a list of one text is that text."""
        request = await asked(COMPLETIONS, {"prompt": prompt})
        assert (request.prompt, request.raw) == ("a b", True)

    @pytest.mark.parametrize("prompt", [[5, 6], [[5, 6]]])
    async def test_a_prompt_may_be_token_ids(self, prompt: object) -> None:
        """One list of them, or a list of one list."""
        assert (await asked(COMPLETIONS, {"prompt": prompt})).prompt_token_ids == (5, 6)

    async def test_text_parts_are_joined_and_empty_fields_left_out(self) -> None:
        """As clients send messages that they got."""
        turns = [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None},
        ]
        request = await asked(CHAT, {"messages": turns})
        assert request.messages == (Message("user", "ab"), Message("assistant", "c"))

    async def test_our_parameters_work_here_too(self) -> None:
        """Those of vLLM, and speculation for one request."""
        extra = {"top_k": 5, "min_p": 0.1, "speculation": {"mode": "autoregressive"}}
        request = await asked(CHAT, {**HELLO, **extra, "max_completion_tokens": 9})
        assert (request.params.top_k, request.params.min_p, request.params.max_tokens) == (5, 0.1, 9)
        assert request.speculation.mode is Mode.AUTOREGRESSIVE

    @pytest.mark.parametrize(
        "field",
        [
            {"n": 1},
            {"user": "me"},
            {"logprobs": False},
            {"logprobs": None},
            {"presence_penalty": 0.0, "frequency_penalty": 0},
            {"response_format": {"type": "text"}},
            {"tools": None, "tool_choice": "none"},
            {"store": False, "metadata": {"a": "b"}},
            {"stream": False, "stream_options": None},
            {"echo": False, "suffix": None, "best_of": 1, "logit_bias": {}},
        ],
        ids=str,
    )
    async def test_what_clients_always_send_passes_where_it_changes_nothing(
        self, field: dict[str, Any]
    ) -> None:
        """The same request as without it."""
        assert (await asked(COMPLETIONS, {"prompt": "a", **field})).params == (
            await asked(COMPLETIONS, {"prompt": "a"})
        ).params

    async def test_requests_have_ids_of_their_own(self) -> None:
        """So that every round in a trace belongs to one request."""
        ids = {(await asked(COMPLETIONS, {"prompt": "a"})).id for _ in range(3)}
        assert len(ids) == 3


class TestState:
    async def test_models_lists_the_one_with_its_context(self) -> None:
        """`max_model_len` is vLLM's name for it."""
        async with served(FakeEngine(context=77)) as (app, _):
            [model] = (await get(app, "/v1/models")).json()["data"]
        assert (model["id"], model["max_model_len"]) == (MODEL, 77)

    async def test_while_loading_health_is_good_and_ready_says_why_not(self) -> None:
        """Requests are refused with 503, and told to come again."""
        from ssd_runtime.server.app import create_app

        service = Service(Settings())
        app = create_app(service)
        service.report("reading weights", 3, 10)
        assert (await get(app, "/health")).status == 200
        ready = await get(app, "/ready")
        assert (ready.status, ready.json()["reason"]) == (503, "reading weights (3 of 10)")
        exchange = await post(app, COMPLETIONS, {"prompt": "a"})
        assert (exchange.status, exchange.json()["error"]["type"]) == (503, "engine_closed")
        assert exchange.headers["retry-after"] == "1"
        assert (await get(app, "/metrics")).status == 200

    async def test_ready_comes_after_first_requests(self) -> None:
        """They have been answered already, and the parts say how they are."""
        engine = FakeEngine()
        async with served(engine) as (app, _):
            assert set(engine.finished) == {"warm-up"}
            ready = await get(app, "/ready")
        assert ready.status == 200
        assert ready.json()["parts"] == {"draft": "ok"}

    async def test_parts_that_are_out_of_service_make_it_degraded_and_requests_are_taken(self) -> None:
        """Ready all the same; the reason names them."""
        engine = FakeEngine()
        async with served(engine) as (app, _):
            engine.parts = {"draft": "out of service", "ngram": "ok"}
            ready = await get(app, "/ready")
            assert (await get(app, "/health")).status == 200
            assert (await post(app, COMPLETIONS, {"prompt": "a"})).status == 200
        assert ready.status == 200
        assert (ready.json()["status"], ready.json()["reason"]) == ("degraded", "draft: out of service")

    async def test_a_dead_engine_is_unhealthy(self) -> None:
        """`/health`, `/ready` and requests all say 503."""
        engine = FakeEngine()
        async with served(engine) as (app, _):
            engine.is_alive = False
            assert (await get(app, "/health")).status == 503
            assert (await get(app, "/ready")).json()["status"] == "failed"
            assert (await post(app, COMPLETIONS, {"prompt": "a"})).status == 503

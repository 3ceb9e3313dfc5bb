"""What the daemon refuses: a 4xx with the field's name, never a 5xx, and the next request works."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from ssd_runtime.errors import ComputeError, ConfigError, ContextLengthError, QueueFullError, SSDError
from ssd_runtime.server.auth import configured_key
from ssd_runtime.settings.schema import ServerSettings
from ssd_runtime.testing.asgi import JSON, Exchange, get, post, served
from ssd_runtime.testing.fake_engine import FakeEngine

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"role": "user", "content": "a"}
DEEP = 100_000

WRONG_FIELDS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"prompt": "nul \0"}, "prompt"),
    (COMPLETIONS, {"prompt": "\ud800"}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [""]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
    (COMPLETIONS, {"prompt": [1, -2]}, "prompt.1"),
    (COMPLETIONS, {"prompt": [1, True]}, "prompt.1"),
    (COMPLETIONS, {"prompt": {"text": "a"}}, "prompt"),
    (COMPLETIONS, {"prompt": "a", "messages": [USER]}, "messages"),
    (COMPLETIONS, {"prompt": "a", "temprature": 1}, "temprature"),
    (COMPLETIONS, {"prompt": "a", "id": "mine"}, "id"),
    (COMPLETIONS, {"prompt": "a", "temperature": "hot"}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "temperature": 2.1}, "temperature"),
    (COMPLETIONS, {"prompt": "a", "top_p": 0}, "top_p"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 1.5}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": True}, "max_tokens"),
    (COMPLETIONS, {"prompt": "a", "seed": 2**64}, "seed"),
    (COMPLETIONS, {"prompt": "a", "stop": ["x"] * 17}, "stop"),
    (COMPLETIONS, {"prompt": "a", "stop": [""]}, "stop.0"),
    (COMPLETIONS, {"prompt": "a", "n": 0}, "n"),
    (COMPLETIONS, {"prompt": "a", "n": 129}, "n"),
    (COMPLETIONS, {"prompt": "a", "best_of": 2}, "best_of"),
    (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    (COMPLETIONS, {"prompt": "a", "n": True}, "n"),
    (COMPLETIONS, {"prompt": "a", "echo": 1}, "echo"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 21}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "logprobs": -1}, "logprobs"),
    (COMPLETIONS, {"prompt": "a", "prompt_logprobs": True}, "prompt_logprobs"),
    (CHAT, {"messages": [USER], "echo": True}, "echo"),
    (CHAT, {"messages": [USER], "top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"messages": [USER], "top_logprobs": 2, "logprobs": 3}, "top_logprobs"),
    (COMPLETIONS, {"prompt": "a", "presence_penalty": 2.5}, "presence_penalty"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"1": 101}}, "logit_bias.1"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"abc": 5}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": {"-1": 5}}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": [1]}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "allowed_token_ids": []}, "allowed_token_ids"),
    (COMPLETIONS, {"prompt": "a", "guided_json": 5}, "guided_json"),
    (COMPLETIONS, {"prompt": "a", "user": 5}, "user"),
    (COMPLETIONS, {"prompt": "a", "stream": "yes"}, "stream"),
    (COMPLETIONS, {"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "stream": True, "stream_options": []}, "stream_options"),
    (COMPLETIONS, {"prompt": "a", "stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    *(
        (CHAT, {"messages": [USER], "stream": True, "stream_options": {name: 1}}, f"stream_options.{name}")
        for name in ("include_usage", "include_obfuscation", "continuous_usage_stats")
    ),
    (COMPLETIONS, {"prompt": "a", "model": 5}, "model"),
    (COMPLETIONS, {"prompt": "a", "speculation": {"length": 65}}, "speculation.length"),
    (COMPLETIONS, {"prompt": "a", "speculation": {"mode": "fast"}}, "speculation.mode"),
    (CHAT, {}, "messages"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hello"}, "messages"),
    (CHAT, {"messages": [5]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content"),
    (CHAT, {"messages": [USER, {"role": "user", "content": 5}]}, "messages.1.content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
    (CHAT, {"messages": [{**USER, "colour": "red"}]}, "messages.0.colour"),
    (CHAT, {"messages": [USER], "prompt": "a"}, "prompt"),
    (CHAT, {"messages": [USER], "max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"messages": [USER], "max_completion_tokens": 1, "max_tokens": 2}, "max_completion_tokens"),
    (CHAT, {"messages": [USER], "tools": [{"type": "function"}]}, "tools.0.function"),
    (
        CHAT,
        {"messages": [USER], "tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools.0.function.name",
    ),
    (CHAT, {"messages": [USER], "tools": [{"type": "retrieval"}]}, "tools.0.type"),
    (CHAT, {"messages": [USER], "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": [USER], "tool_choice": {"type": "function"}}, "tool_choice"),
    (CHAT, {"messages": [{"role": "assistant", "content": None}]}, "messages.0.content"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]},
        "messages.0.tool_calls.0.function.arguments",
    ),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}]},
        "messages.0.tool_calls.0.function.arguments",
    ),
    (COMPLETIONS, {"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    (COMPLETIONS, {"prompt": "a", "logit_bias": dict.fromkeys(map(str, range(1025)), 1)}, "logit_bias"),
    (COMPLETIONS, {"prompt": "a", "bad_words": ["x"] * 1025}, "bad_words"),
    (COMPLETIONS, {"prompt": "a", "stop": ["x" * 1025]}, "stop.0"),
    (COMPLETIONS, {"prompt": "a", "guided_regex": "x" * 65537}, "guided_regex"),
    (
        COMPLETIONS,
        {"prompt": "a", "structured_outputs": {"grammar": "x" * 65537}},
        "structured_outputs.grammar",
    ),
    (CHAT, {"messages": [USER], "response_format": {"type": "json"}}, "response_format"),
]
WRONG_BODIES = {
    "nothing": b"",
    "no JSON": b"{prompt: 1}",
    "cut off": b'{"prompt": "a"',
    "a list": b"[1]",
    "a number": b"1",
    "null": b"null",
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": -Infinity}',
    "a field twice": b'{"prompt": "a", "prompt": "b"}',
    "no UTF-8": b'{"prompt": "\xff"}',
    "nested deeply": b'{"prompt": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    "a long number": b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}",
}


async def check(path: str, body: bytes | dict[str, Any], status: int, headers: dict[str, str] = JSON) -> Any:
    """The error of a request that is refused with `status`; a good one after it works."""
    engine = FakeEngine()
    async with served(engine) as (app, _):
        wrong = await Exchange(app, "POST", path, body, headers).done()
        good = await post(app, COMPLETIONS, {"prompt": "still here"})
    assert wrong.status == status, wrong.body
    assert wrong.headers["content-type"] == "application/json"
    assert (good.status, good.json()["choices"][0]["text"]) == (200, "still here")
    reached = [request for request in engine.requests if request.id != "warm-up"]
    assert len(reached) == 1, "the wrong request reached the engine"
    error = wrong.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


@pytest.mark.parametrize(("path", "body", "field"), WRONG_FIELDS, ids=str)
async def test_a_wrong_field_is_named(path: str, body: dict[str, Any], field: str) -> None:
    """In `param`, with its place, and at the beginning of the message."""
    error = await check(path, body, 400)
    assert error["param"] == field
    assert field in error["message"]


@pytest.mark.parametrize(
    ("path", "body"), [(COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": [USER]})], ids=["text", "chat"]
)
async def test_the_fields_named_beside_an_unknown_one_are_this_endpoints(path: str, body: Any) -> None:
    """Each of them is one, whatever is wrong with its value."""
    async with served(FakeEngine()) as (app, _):
        message = (await post(app, path, body | {"strem": True})).json()["error"]["message"]
        assert "did you mean 'stream'?" in message
        allowed = message.partition("allowed: ")[2].split(", ")
        assert {"model", "stream", "user", *body} < set(allowed)
        for name in allowed:
            refused = (await post(app, path, body | {name: {"wrong": 1}})).json()
            assert "unknown field; not" not in str(refused)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
async def test_a_number_too_large_for_a_float_is_named(field: str) -> None:
    """JSON can write numbers that no float holds."""
    error = await check(COMPLETIONS, f'{{"prompt": "a", "{field}": 1e999}}'.encode(), 400)
    assert error["param"] == field


@pytest.mark.parametrize("body", WRONG_BODIES.values(), ids=WRONG_BODIES.keys())
async def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    """Whatever it is instead, and however it is nested."""
    await check(COMPLETIONS, body, 400)


async def test_another_model_is_not_found() -> None:
    """The message says which one is served."""
    error = await check(COMPLETIONS, {"prompt": "a", "model": "gpt-4o"}, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'smollm2-135m'" in error["message"]


@pytest.mark.parametrize("content_type", [{}, {"content-type": "application/x-www-form-urlencoded"}])
async def test_a_body_must_say_that_it_is_json(content_type: dict[str, str]) -> None:
    """Pages of other origins cannot send that without asking, so they cannot use a local daemon."""
    error = await check(COMPLETIONS, {"prompt": "a"}, 415, content_type)
    assert error["param"] == "Content-Type"


async def test_a_charset_may_follow_the_content_type() -> None:
    """Some clients send one."""
    async with served(FakeEngine()) as (app, _):
        headers = {"content-type": "application/json; charset=utf-8"}
        assert (await Exchange(app, "POST", COMPLETIONS, {"prompt": "a"}, headers).done()).status == 200


async def test_ten_megabytes_are_too_much() -> None:
    """The limit is named."""
    error = await check(COMPLETIONS, {"prompt": "a" * 10_000_000}, 413)
    assert "server.max_body_bytes" in error["message"]


async def test_a_large_body_that_is_allowed_is_parsed() -> None:
    """On a worker thread, which changes nothing."""
    async with served(FakeEngine()) as (app, _):
        body = json.dumps({"prompt": "word " * 20_000, "max_tokens": 1}).encode()
        assert (await post(app, COMPLETIONS, body)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/v2", 404), ("POST", "/health", 405), ("GET", COMPLETIONS, 405)]
)
async def test_unknown_paths_and_methods_have_the_same_shape(method: str, path: str, status: int) -> None:
    """Also errors that no endpoint makes are OpenAI's."""
    async with served(FakeEngine()) as (app, _):
        exchange = await Exchange(app, method, path).done()
    assert exchange.status == status
    assert path in exchange.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextLengthError("too long", "prompt"), 400, "context_length_exceeded"),
        (QueueFullError("many wait"), 429, "queue_full"),
        (ComputeError("not finite"), 500, "compute_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_byte_is_a_status(
    error: SSDError, status: int, code: str, stream: bool
) -> None:
    """Streamed or not: nothing has been promised yet."""
    engine = FakeEngine(lambda request: [] if request.id == "warm-up" else [error])
    async with served(engine) as (app, _):
        exchange = await post(app, COMPLETIONS, {"prompt": "a", "stream": stream})
    assert (exchange.status, exchange.json()["error"]["code"]) == (status, code)


async def test_an_error_in_a_stream_is_an_event() -> None:
    """The stream ends with it and without `[DONE]`, so that no client takes it for an answer."""
    engine = FakeEngine(lambda request: [] if request.id == "warm-up" else ["a", ComputeError("not finite")])
    async with served(engine) as (app, _):
        exchange = await post(app, COMPLETIONS, {"prompt": "a", "stream": True})
    *_, last, rest = exchange.body.decode().split("\n\n")
    assert rest == ""
    assert json.loads(last.removeprefix("data: "))["error"]["message"] == "not finite"


class TestKey:
    @pytest.mark.parametrize(
        "header", ["", "Bearer", "Bearer no", "Bearer secre", "Bearer secret2", "Basic secret", "secret"]
    )
    async def test_without_the_key_nothing_is_answered(self, header: str) -> None:
        """401, also for paths that do not exist."""
        async with served(FakeEngine(), key="secret") as (app, _):
            for path in (COMPLETIONS, "/v1/models", "/nowhere"):
                exchange = await post(app, path, {"prompt": "a"}, authorization=header)
                assert (exchange.status, exchange.json()["error"]["code"]) == (401, "invalid_api_key")
                assert exchange.headers["www-authenticate"] == "Bearer"

    async def test_with_the_key_everything_works(self) -> None:
        """As OpenAI's clients send it."""
        async with served(FakeEngine(), key="secret") as (app, _):
            exchange = await post(app, COMPLETIONS, {"prompt": "a"}, authorization="Bearer secret")
        assert exchange.status == 200

    async def test_state_needs_no_key(self) -> None:
        """Supervisors and scrapers have none."""
        async with served(FakeEngine(), key="secret") as (app, _):
            assert [(await get(app, path)).status for path in ("/health", "/ready", "/metrics")] == [200] * 3

    def test_it_comes_from_the_settings_or_a_file(self, tmp_path: Path) -> None:
        """Without the newline that editors add."""
        path = tmp_path / "key"
        path.write_text("secret\n", encoding="utf-8")
        assert configured_key(ServerSettings(api_key=SecretStr("other"))) == "other"
        assert configured_key(ServerSettings(api_key_file=str(path))) == "secret"
        assert configured_key(ServerSettings()) is None

    @pytest.mark.parametrize("content", [None, " \n"])
    def test_a_file_without_a_key_stops_the_start(self, content: str | None, tmp_path: Path) -> None:
        """Rather than serving everybody."""
        path = tmp_path / "key"
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"server\.api_key_file"):
            configured_key(ServerSettings(api_key_file=str(path)))

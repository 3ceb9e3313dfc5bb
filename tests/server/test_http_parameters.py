"""What sampling parameters ask for, in OpenAI's shapes, from a whole engine on a toy model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp

from ssd_runtime.settings.sampling import Sampling
from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.toy import toy_decoder

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = {"messages": [{"role": "user", "content": "Hi"}]}
COMMON = {"max_tokens": 6, "seed": 1, "ignore_eos": True, "temperature": 1}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
EVERY: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "logit_bias": {"34": 5},
    "allowed_token_ids": [34, 35],
    "banned_token_ids": [34, 35],
    "bad_words": ["A"],
    "min_tokens": 2,
    "max_tokens": 3,
    "max_completion_tokens": 6,
    "stop": ["A"],
    "stop_token_ids": [34],
    "ignore_eos": True,
    "seed": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "prompt_logprobs": 2,
    "echo": True,
    "n": 2,
    "include_stop_str_in_output": True,
    "warpers": [],
    "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    "structured_outputs": {"choice": ["yes", "no"]},
    "guided_json": SCHEMA,
    "guided_regex": "[a-z]+",
    "guided_choice": ["yes", "no"],
    "guided_grammar": 'start: "yes" | "no"',
    "prediction": {"type": "content", "content": "HELLO"},
    "speculation": {"mode": "ssd", "length": 2},
}
"""A value of every field that requests have beside the prompt."""
STRUCTURED = ("response_format", "structured_outputs", "guided_")


@pytest.fixture(name="app")
async def toy_app() -> AsyncIterator[ASGIApp]:
    async with served(toy_engine()) as (app, _):
        yield app


async def asked(app: ASGIApp, path: str, **fields: Any) -> Any:
    exchange = await post(app, path, COMMON | (USER if path == CHAT else {"prompt": "Hi"}) | fields)
    assert exchange.status == 200, exchange.body
    return exchange.events() if fields.get("stream") else exchange.json()


async def test_chat_logprobs_have_openais_shape(app: ASGIApp) -> None:
    """One entry a token: text, bytes, log probability, alternatives; the id beside them."""
    choice = (await asked(app, CHAT, logprobs=True, top_logprobs=2))["choices"][0]
    content = choice["logprobs"]["content"]
    assert [entry["token_id"] for entry in content] == choice["token_ids"]
    assert "".join(entry["token"] for entry in content) == choice["message"]["content"]
    for entry in content:
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top_logprobs"]) == 2
        assert -30 < entry["logprob"] <= entry["top_logprobs"][0]["logprob"] <= 0


async def test_completion_logprobs_have_openais_older_shape(app: ASGIApp) -> None:
    """Four lists of one length; the alternatives hold the token itself; offsets are into the text."""
    choice = (await asked(app, COMPLETIONS, logprobs=2))["choices"][0]
    told = choice["logprobs"]
    assert {name: len(values) for name, values in told.items()} == dict.fromkeys(
        ("tokens", "token_logprobs", "top_logprobs", "text_offset"), 6
    )
    for token, logprob, top, offset in zip(*told.values(), strict=True):
        assert top[token] == logprob
        assert choice["text"][offset : offset + len(token)] == token


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_streamed_logprobs_joined_are_those_of_the_whole_answer(app: ASGIApp, path: str) -> None:
    """Also the text offsets, which count from the beginning of the answer."""
    whole = (await asked(app, path, logprobs=1))["choices"][0]["logprobs"]
    events = await asked(app, path, logprobs=1, stream=True)
    parts = [event["choices"][0]["logprobs"] for event in events]
    for name, values in whole.items():
        if values is not None:
            assert [value for part in parts for value in part[name]] == values


async def test_without_logprobs_there_are_none(app: ASGIApp) -> None:
    """`null`, as OpenAI has it; `logprobs: false` and `top_logprobs: 0` ask for nothing."""
    for fields in ({}, {"logprobs": False}, {"top_logprobs": 0}):
        assert (await asked(app, CHAT, **fields))["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_several_choices_are_numbered_and_their_usage_is_summed(app: ASGIApp, stream: bool) -> None:
    """Case B60, whole and streamed: each choice alike, and the prompt is counted once."""
    whole = await asked(app, CHAT, n=3)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert len(set(texts)) == 3
    for choice in whole["choices"]:
        alone = await asked(app, CHAT, seed=choice["seed"])
        assert alone["choices"][0]["message"] == choice["message"]
    assert (whole["usage"]["prompt_tokens"], whole["usage"]["completion_tokens"]) == (3, 18)
    if stream:
        events = await asked(app, CHAT, n=3, stream=True, stream_options={"include_usage": True})
        *pieces, last = events
        joined = ["", "", ""]
        for event in pieces:
            [choice] = event["choices"]
            joined[choice["index"]] += choice["delta"]["content"]
        assert joined == texts
        assert last["usage"]["completion_tokens"] == 18
        assert sum(event["choices"][0]["delta"].get("role") == "assistant" for event in pieces) == 3


@pytest.mark.parametrize("max_tokens", [0, 6])
async def test_an_echoed_prompt_has_its_logprobs_in_front(app: ASGIApp, max_tokens: int) -> None:
    """OpenAI's way to score a text: echo, logprobs, no tokens. The first token has none."""
    body = await asked(app, COMPLETIONS, prompt="HELLO", echo=True, logprobs=1, max_tokens=max_tokens)
    choice = body["choices"][0]
    told = choice["logprobs"]
    assert choice["text"].startswith("HELLO")
    assert "".join(told["tokens"]) == choice["text"]
    assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
    assert all(value < 0 for value in told["token_logprobs"][1:])
    assert body["usage"]["completion_tokens"] == max_tokens == len(choice["token_ids"])


async def test_prompt_logprobs_come_beside_the_choice(app: ASGIApp) -> None:
    """Where nothing is echoed; one entry for each prompt token."""
    choice = (await asked(app, COMPLETIONS, prompt="HELLO", prompt_logprobs=1))["choices"][0]
    assert [entry["token"] for entry in choice["prompt_logprobs"]] == list("HELLO")
    assert choice["logprobs"] is None


async def test_logit_bias_has_texts_as_keys(app: ASGIApp) -> None:
    """As JSON wants it and OpenAI's clients send it: the answer is nothing but `A`."""
    body = await asked(app, COMPLETIONS, logit_bias={str(ord("A") - 31): 100})
    assert body["choices"][0]["text"] == "A" * 6


async def test_the_stop_string_may_be_kept(app: ASGIApp) -> None:
    """vLLM's `include_stop_str_in_output`."""
    free = (await asked(app, COMPLETIONS))["choices"][0]["text"]
    cut = (await asked(app, COMPLETIONS, stop=free[3]))["choices"][0]
    kept = (await asked(app, COMPLETIONS, stop=free[3], include_stop_str_in_output=True))["choices"][0]
    assert kept["text"] == cut["text"] + free[3]
    assert kept["token_ids"] == cut["token_ids"]


def test_every_parameter_is_among_those_that_are_tried() -> None:
    """A new one needs a value here."""
    assert EVERY.keys() >= Sampling.model_fields.keys()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_parameter_is_taken_over_http(path: str, stream: bool) -> None:
    """One after the other, by both endpoints, whole and streamed."""
    settings = ("scheduler.policy=ssd", "engine.draft_model=toy/1")
    async with served(toy_engine(*settings, models={"toy/target": toy_decoder(1, vocab=96)})) as (app, _):
        for name, value in EVERY.items():
            if name == "echo" and path == CHAT:
                continue
            end = {"ignore_eos": None} if name.startswith(STRUCTURED) else {}
            limit = {"max_tokens": 40} if end else {}
            given = {"logprobs": True} if name == "top_logprobs" else {}
            assert await asked(app, path, **end, **limit, **(given | {name: value}), stream=stream), name

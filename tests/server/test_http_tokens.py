"""`/tokenize` and `/detokenize`: vLLM's fields, and the ids that answers are computed from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp

from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.engines import toy_engine

USER = {"role": "user", "content": "HI"}
TOOL = {"type": "function", "function": {"name": "ADD"}}


@pytest.fixture(name="app")
async def toy_app() -> AsyncIterator[ASGIApp]:
    async with served(toy_engine("scheduler.max_tokens=64")) as (app, _):
        yield app


async def answered(app: ASGIApp, path: str, body: dict[str, Any]) -> Any:
    exchange = await post(app, path, body)
    assert exchange.status == 200, exchange.body
    return exchange.json()


async def test_a_text_has_ids_and_their_number(app: ASGIApp) -> None:
    """And the context that they may fill."""
    body = await answered(app, "/tokenize", {"model": "toy/target", "prompt": "HELLO"})
    assert body == {
        "count": 5,
        "max_model_len": 64,
        "tokens": [ord(char) - 31 for char in "HELLO"],
        "token_strs": None,
    }


async def test_tokens_can_be_spelled(app: ASGIApp) -> None:
    """As the vocabulary spells them, one text for each id."""
    body = await answered(app, "/tokenize", {"prompt": "ABC", "return_token_strs": True})
    assert body["token_strs"] == ["A", "B", "C"]


async def test_a_conversation_is_tokenised_as_a_chat_would_be(app: ASGIApp) -> None:
    """The count is the prompt's in the answer's usage, with and without tools."""
    for body in ({"messages": [USER]}, {"messages": [USER], "tools": [TOOL]}):
        count = (await answered(app, "/tokenize", body))["count"]
        answer = await answered(app, "/v1/chat/completions", {**body, "max_tokens": 1})
        assert count == answer["usage"]["prompt_tokens"]


async def test_a_conversation_may_be_left_as_it_stands(app: ASGIApp) -> None:
    """Without what the template puts before an answer."""
    whole = await answered(app, "/tokenize", {"messages": [USER]})
    bare = await answered(app, "/tokenize", {"messages": [USER], "add_generation_prompt": False})
    assert bare["tokens"] == whole["tokens"][:-1]


async def test_ids_are_spelled_out_with_special_tokens_by_name(app: ASGIApp) -> None:
    """So that nothing of a prompt is hidden; the toy's end is called by a control character."""
    assert await answered(app, "/detokenize", {"tokens": [34, 35, 0, 36]}) == {"prompt": "AB\x1fC"}
    assert await answered(app, "/detokenize", {"tokens": []}) == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "a\0"}, 400, "prompt"),
        ("/tokenize", {"prompt": "a", "colour": 1}, 400, "colour"),
        ("/tokenize", {"prompt": "a", "model": "gpt-4o"}, 404, "model"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/tokenize", {"messages": [USER], "prompt": "a"}, 400, "prompt"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [1, 64]}, 400, "tokens.1"),
        ("/detokenize", {"tokens": [1], "prompt": "a"}, 400, "prompt"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_named(
    app: ASGIApp, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    """As at every other endpoint."""
    exchange = await post(app, path, body)
    assert (exchange.status, exchange.json()["error"]["param"]) == (status, param)

"""Tools reach the model through its chat template, or are refused by name where it has no place for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ssd_runtime.models.conversation import chat_ids
from ssd_runtime.models.tokenizer import _words
from ssd_runtime.testing.asgi import post, served
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.fake_engine import FakeEngine
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Request

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "what is two and two?"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": SCHEMA}}
CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2}'}}


async def asked(**fields: Any) -> Request:
    """The request that the engine gets."""
    engine = FakeEngine()
    async with served(engine) as (app, _):
        exchange = await post(app, CHAT, {"messages": [USER]} | fields)
    assert exchange.status == 200, exchange.body
    return engine.requests[-1]


async def test_the_template_gets_tools_as_they_were_sent() -> None:
    """With or without `tool_choice: auto`, which is what their being there means."""
    assert (await asked(tools=[TOOL])).tools == (TOOL,)
    assert (await asked(tools=[TOOL], tool_choice="auto", parallel_tool_calls=True)).tools == (TOOL,)


async def test_with_tool_choice_none_the_model_is_not_told_of_tools() -> None:
    """So that it calls none."""
    assert (await asked(tools=[TOOL], tool_choice="none")).tools == ()


async def test_calls_and_results_of_earlier_turns_reach_the_template() -> None:
    """The arguments as a mapping, which templates write as JSON themselves."""
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    messages = (await asked(messages=turns)).messages
    assert messages is not None
    [call] = messages[1].tool_calls
    assert call == CALL | {"function": {"name": "add", "arguments": {"a": 2}}}
    assert (messages[1].content, messages[2].tool_call_id) == ("", "1")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [TOOL]}, "tools"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}, "messages.1.tool_calls"),
        ({"messages": [USER | {"name": "me"}]}, "messages.0.name"),
    ],
)
async def test_a_template_without_a_place_for_them_refuses_them(fields: dict[str, Any], param: str) -> None:
    """The model would never hear of what its client counts on."""
    model = toy_decoder(1)
    model.tokenizer.template_words = frozenset({"messages", "role", "content"})
    async with served(toy_engine(models={"toy/target": model})) as (app, _):
        exchange = await post(app, CHAT, {"messages": [USER], "max_tokens": 1} | fields)
        assert (exchange.status, exchange.json()["error"]["param"]) == (400, param)
        assert (await post(app, CHAT, {"messages": [USER], "max_tokens": 1})).status == 200


async def test_tools_are_part_of_the_prompt() -> None:
    """The toy's template writes their names."""
    async with served(toy_engine()) as (app, _):
        sizes = [
            (await post(app, CHAT, {"messages": [USER], "max_tokens": 1, **fields})).json()["usage"]
            for fields in ({}, {"tools": [TOOL]})
        ]
    assert sizes[1]["prompt_tokens"] == sizes[0]["prompt_tokens"] + len("add|")


def test_a_templates_words_are_those_of_its_code() -> None:
    """A text that happens to say `tools` is no place for them."""
    template = (
        "Use tools! {% for m in messages %}{{ m['content'] }}{% if m.tool_calls %}{% endif %}{% endfor %}"
    )
    assert {"messages", "content", "tool_calls"} <= _words(template)
    assert "tools" not in _words(template)


@pytest.mark.model
def test_a_real_template_says_what_it_knows() -> None:
    """SmolLM2's knows no tools."""
    from ssd_runtime.errors import RequestError
    from ssd_runtime.models.linear import Float32Quantizer
    from ssd_runtime.models.loading import load, resolve
    from ssd_runtime.types import Message

    tokenizer = load(resolve("smollm2-135m"), Float32Quantizer(), progress=lambda *_: None).tokenizer
    with pytest.raises(RequestError, match="no place for tools"):
        chat_ids(tokenizer, [Message("user", "hi")], [json.loads(json.dumps(TOOL))])

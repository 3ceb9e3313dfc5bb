"""Conversations as requests have them: turns, and the tools that the model may call. OpenAI's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ssd_runtime.errors import RequestError
from ssd_runtime.settings.sampling import Part, Text, Word
from ssd_runtime.types import Message

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
_NAME = "a name of 1 to 64 letters, digits, '_', '.' and '-'"


class Called(Part):
    """The function of a call, with its arguments as JSON or as a mapping."""

    name: ToolName = Field(description=_NAME)
    arguments: Word | dict[str, Any] = Field(description="a JSON object, as a text or as it is")


class ToolCall(Part):
    """A call that an earlier answer made."""

    id: Word | None = Field(None, description="a text")
    type: Literal["function"] = Field("function", description="'function'")
    function: Called = Field(description="a mapping {name, arguments}")


class Turn(Part):
    """One message."""

    role: Text = Field(min_length=1, description="a role such as 'user'")
    content: Text | None = Field(None, description="a text without NUL characters")
    name: Text | None = Field(None, min_length=1, description="a text that is not empty")
    tool_calls: list[ToolCall] | None = Field(None, min_length=1, description="a list of calls")
    tool_call_id: Word | None = Field(None, description="a text")


class Function(Part):
    """A function that the model is told of."""

    name: ToolName = Field(description=_NAME)
    description: Word | None = Field(None, description="a text")
    parameters: dict[str, Any] | None = Field(None, description="a JSON schema")
    strict: Literal[False] | None = Field(None, description="false: what the model writes is not checked")


class Tool(Part):
    """A tool; there are functions only."""

    type: Literal["function"] = Field(description="'function'")
    function: Function = Field(description="a mapping {name, description, parameters}")


def messages_of(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """The conversation that `turns` are; raises `RequestError`."""
    return tuple(_message(turn, place) for place, turn in enumerate(turns))


def tools_of(tools: Sequence[Tool]) -> tuple[Mapping[str, Any], ...]:
    """`tools` as chat templates want them."""
    return tuple(tool.model_dump(exclude_none=True) for tool in tools)


def _message(turn: Turn, place: int) -> Message:
    if turn.content is None and not turn.tool_calls:
        param = f"messages.{place}.content"
        raise RequestError(f"{param}: got nothing, expected a text without NUL characters", param)
    calls = tuple(
        _call(call, f"messages.{place}.tool_calls.{i}") for i, call in enumerate(turn.tool_calls or ())
    )
    return Message(turn.role, turn.content or "", calls, turn.tool_call_id, turn.name)


def _call(call: ToolCall, param: str) -> Mapping[str, Any]:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = _json_object(arguments, f"{param}.function.arguments")
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": call.id, "type": call.type, "function": function}


def _json_object(text: str, param: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param}: not valid JSON: {error}", param) from None
    if not isinstance(value, dict):
        raise RequestError(f"{param}: got {text[:60]!r}, expected a JSON object", param)
    return value

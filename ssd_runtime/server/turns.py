"""Messages as OpenAI's clients write them: with fields that are empty, and with texts in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ssd_runtime.errors import RequestError

EMPTY: Mapping[str, tuple[Any, ...]] = {
    "annotations": (None, []),
    "audio": (None,),
    "content": (None,),
    "function_call": (None,),
    "name": (None,),
    "refusal": (None,),
    "tool_call_id": (None,),
    "tool_calls": (None, []),
}
"""What clients send of answers that they got: with these values a field says nothing."""


def plain_turns(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with messages that say everything once; raises `RequestError`."""
    turns = body.get("messages")
    plain = [_plain(turn, place) for place, turn in enumerate(turns)] if isinstance(turns, list) else turns
    return dict(body) | {"messages": plain}


def _plain(turn: object, place: int) -> object:
    """A message without its empty fields, and with its text parts joined."""
    if not isinstance(turn, dict):
        return turn
    kept = {name: value for name, value in turn.items() if value not in EMPTY.get(name, ())}
    if isinstance(kept.get("content"), list):
        kept["content"] = _joined(kept["content"], f"messages.{place}.content")
    return kept


def _joined(parts: list[object], param: str) -> str:
    for part in parts:
        is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
        if not (is_text and isinstance(part["text"], str)):  # type: ignore[index]
            raise RequestError(
                f"{param}: got {str(part)[:60]}, expected a text or a list of {{'type': 'text', 'text'}}",
                param,
            )
    return "".join(part["text"] for part in parts)  # type: ignore[index]

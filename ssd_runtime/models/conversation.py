"""Conversations in a model's chat template, or a refusal by name where it has no place for something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssd_runtime.errors import RequestError
from ssd_runtime.models.tokenizer import Tokenizer
from ssd_runtime.types import Message


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    for_answer: bool = True,
) -> list[int]:
    """The ids of a conversation, ready for the answer or as it stands; raises `RequestError`."""
    if not tokenizer.has_chat_template:
        raise RequestError("this model has no chat template; send a prompt instead", "messages")
    _check_knows(tokenizer, "tools", "tools", tools)
    for place, message in enumerate(messages):
        for field in ("tool_calls", "name"):
            _check_knows(tokenizer, field, f"messages.{place}.{field}", getattr(message, field))
    return tokenizer.render_chat(messages, tools, for_answer=for_answer)


def _check_knows(tokenizer: Tokenizer, word: str, param: str, value: object) -> None:
    if value and word not in tokenizer.template_words:
        raise RequestError(
            f"{param}: got some, but this model's chat template has no place for {word}; leave them out",
            param,
        )

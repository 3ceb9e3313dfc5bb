"""The two endpoints that answer: how each words a prompt and an answer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ssd_runtime.errors import RequestError
from ssd_runtime.faces import described, finite
from ssd_runtime.server.turns import plain_turns
from ssd_runtime.types import Answer, TokenLogprob

_ELSEWHERE = ("id", "raw", "prompt_token_ids")


class Endpoint(Protocol):
    """What one endpoint adds to the common fields. `id_prefix`, `name`, `chunk_name`: as OpenAI has them.

    elsewhere: fields of `RequestBody` that are none here. neutral: fields that have only these values here.
    """

    id_prefix: str
    name: str
    chunk_name: str
    elsewhere: tuple[str, ...]
    neutral: Mapping[str, tuple[Any, ...]]

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of `parse_request` that `body` means; raises `RequestError`."""
        ...

    def choice(self, answer: Answer) -> dict[str, Any]:
        """The answer's own part of a choice."""
        ...

    def logprobs(self, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """The log probabilities of a choice; `offset`: characters of its text before them."""
        ...

    def delta(self, text: str, *, is_first: bool) -> dict[str, Any]:
        """The own part of a choice that carries a piece."""
        ...


class Completions:
    """`/v1/completions`: the prompt is continued as it stands."""

    id_prefix = "cmpl"
    name = chunk_name = "text_completion"
    elsewhere: tuple[str, ...] = (*_ELSEWHERE, "messages")
    neutral: Mapping[str, tuple[Any, ...]] = {"tools": ([],), "tool_choice": ("none", "auto")}

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Endpoint`."""
        _refuse(body, self.elsewhere)
        prompt = body.pop("prompt", None)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise RequestError(
                    f"prompt: got {len(prompt)} prompts, expected one; send a request for each", "prompt"
                )
            prompt = prompt[0]
        if isinstance(prompt, list):
            body |= {"prompt_token_ids": prompt}
        else:
            body |= {"prompt": prompt, "raw": True if prompt is not None else None}
        asked = body.get("logprobs")
        if body.get("echo") is True and asked is not None and asked is not False:
            body.setdefault("prompt_logprobs", int(asked) if isinstance(asked, bool) else asked)
        return body

    def logprobs(self, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """See `Endpoint`."""
        ends = list(itertools.accumulate((len(entry.token) for entry in entries), initial=offset))
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                {other.token: finite(other.logprob) for other in (*reversed(entry.top), entry)}
                if entry.logprob is not None
                else None
                for entry in entries
            ],
            "text_offset": ends[:-1],
        }

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Endpoint`."""
        return self.delta(answer.text, is_first=True)

    def delta(self, text: str, *, is_first: bool) -> dict[str, Any]:
        """See `Endpoint`."""
        return {"text": text}


class Chat:
    """`/v1/chat/completions`: the model's chat template is applied."""

    id_prefix = "chatcmpl"
    name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    elsewhere: tuple[str, ...] = (*_ELSEWHERE, "prompt", "suffix")
    neutral: Mapping[str, tuple[Any, ...]] = {}

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Endpoint`."""
        _refuse(body, self.elsewhere)
        if body.get("messages") is None:
            raise RequestError("messages: got nothing, expected a list of {role, content}", "messages")
        return plain_turns(body)

    def logprobs(self, entries: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
        """See `Endpoint`."""
        return {"content": list(map(described, entries)), "refusal": None}

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Endpoint`."""
        return {"message": {"role": "assistant", "content": answer.text, "refusal": None}}

    def delta(self, text: str, *, is_first: bool) -> dict[str, Any]:
        """See `Endpoint`."""
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | {"content": text}}


def _refuse(body: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in body:
            raise RequestError(f"{name}: unknown field; not a field of this endpoint", name)

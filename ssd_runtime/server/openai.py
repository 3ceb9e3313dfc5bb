"""OpenAI's words for requests and answers: bodies in, our `Request`; our `Output`, bodies out.

Fields that clients always send pass where they change nothing. Whatever else OpenAI has and we have
not is refused by name, as everywhere; see `settings/request.py`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from ssd_runtime.errors import RequestError
from ssd_runtime.server.errors import RefusedError
from ssd_runtime.settings.request import parse_request
from ssd_runtime.types import Answer, Output, Request, SamplingParams

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that have only these values here: with them the answer is what it is without the field."""
LABELS: Mapping[str, type] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "safety_identifier": str,
    "user": str,
}
"""Fields that never change an answer, and their types."""
_ELSEWHERE = ("id", "raw", "prompt_token_ids")
_OPTIONS = ("include_usage", "include_obfuscation")


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body: what to compute, and how to send it."""

    request: Request
    stream: bool
    include_usage: bool


class Endpoint(Protocol):
    """What one endpoint adds to the common fields. `id_prefix`, `name`, `chunk_name`: as OpenAI has them."""

    id_prefix: str
    name: str
    chunk_name: str

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """The fields of `parse_request` that `body` means; raises `RequestError`."""
        ...

    def choice(self, answer: Answer) -> dict[str, Any]:
        """The answer's own part of a choice."""
        ...

    def delta(self, text: str, *, is_first: bool) -> dict[str, Any]:
        """The own part of a choice that carries a piece."""
        ...


class Completions:
    """`/v1/completions`: the prompt is continued as it stands."""

    id_prefix = "cmpl"
    name = chunk_name = "text_completion"

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Endpoint`."""
        _refuse(body, (*_ELSEWHERE, "messages"))
        prompt = body.pop("prompt", None)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            if len(prompt) > 1:
                raise RequestError(
                    f"prompt: got {len(prompt)} prompts, expected one; send a request for each", "prompt"
                )
            prompt = prompt[0]
        if isinstance(prompt, list):
            return body | {"prompt_token_ids": prompt}
        return body | {"prompt": prompt, "raw": True if prompt is not None else None}

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

    def fields(self, body: dict[str, Any]) -> dict[str, Any]:
        """See `Endpoint`."""
        _refuse(body, (*_ELSEWHERE, "prompt"))
        if body.get("messages") is None:
            raise RequestError("messages: got nothing, expected a list of {role, content}", "messages")
        limit = body.pop("max_completion_tokens", None)
        if limit is not None and body.get("max_tokens") not in (None, limit):
            raise RequestError(
                "max_completion_tokens: got another value than max_tokens, expected one of the two",
                "max_completion_tokens",
            )
        tokens = {"max_tokens": limit} if limit is not None else {}
        turns = body["messages"]
        return body | tokens | {"messages": [_turn(turn) for turn in turns] if _is_list(turns) else turns}

    def choice(self, answer: Answer) -> dict[str, Any]:
        """See `Endpoint`."""
        return {"message": {"role": "assistant", "content": answer.text, "refusal": None}}

    def delta(self, text: str, *, is_first: bool) -> dict[str, Any]:
        """See `Endpoint`."""
        role = {"role": "assistant"} if is_first else {}
        return {"delta": role | {"content": text}}


def parse(endpoint: Endpoint, data: Mapping[str, Any], model: str, defaults: SamplingParams) -> Call:
    """What `data` asks of `endpoint`; raises `RequestError`, with the status 404 for another model."""
    body = _without_neutral(data)
    _check_model(body.pop("model", None), model)
    stream = _flag(body.pop("stream", None), "stream")
    options = _stream_options(body.pop("stream_options", None), stream)
    try:
        request = parse_request(
            endpoint.fields(body) | {"id": f"{endpoint.id_prefix}-{uuid.uuid4().hex}"},
            index=0,
            defaults=defaults,
        )
    except RequestError as error:
        raise _in_clients_words(error, data) from None
    return Call(request, stream, options)


def whole(endpoint: Endpoint, answer: Answer, model: str) -> dict[str, Any]:
    """The body of an answer that is sent at once."""
    end = {"logprobs": None, "finish_reason": answer.finish_reason, "token_ids": answer.token_ids}
    return {
        **_head(answer.request_id, endpoint.name, model),
        "choices": [{"index": 0, **endpoint.choice(answer), **end}],
        "usage": usage(answer),
        **statistics(answer),
    }


def chunk(endpoint: Endpoint, piece: Output, model: str, *, is_first: bool) -> dict[str, Any]:
    """The event that carries one piece; the last one has the finish reason and our statistics."""
    end = {"logprobs": None, "finish_reason": piece.finish_reason, "token_ids": piece.token_ids}
    return {
        **_head(piece.request_id, endpoint.chunk_name, model),
        "choices": [{"index": 0, **endpoint.delta(piece.text, is_first=is_first), **end}],
    }


def usage_chunk(endpoint: Endpoint, answer: Answer, model: str) -> dict[str, Any]:
    """The event after the last piece, where `stream_options.include_usage` asks for it."""
    return {**_head(answer.request_id, endpoint.chunk_name, model), "choices": [], "usage": usage(answer)}


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens, counted as OpenAI counts them; draft tokens are its predictions."""
    prompt, completion = len(answer.prompt_token_ids), len(answer.token_ids)
    drafts = answer.speculation
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": drafts.accepted_tokens,
            "rejected_prediction_tokens": drafts.draft_tokens - drafts.accepted_tokens,
        },
    }


def statistics(answer: Answer) -> dict[str, Any]:
    """What OpenAI does not have: the seed, the times, and what speculation did."""
    return {
        "seed": answer.seed,
        "timing": asdict(answer.timing),
        "speculation": asdict(answer.speculation),
    }


def models(model: str, max_context: int | None) -> dict[str, Any]:
    """The list of the one model that is served."""
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "ssd_runtime"}
    return {"object": "list", "data": [entry | {"max_model_len": max_context}]}


def _head(request_id: str, name: str, model: str) -> dict[str, Any]:
    return {"id": request_id, "object": name, "created": int(time.time()), "model": model}


def _without_neutral(data: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in data.items():
        if value is None:
            continue
        if name in NEUTRAL and not any(_same(value, neutral) for neutral in NEUTRAL[name]):
            wanted = " or ".join(map(repr, NEUTRAL[name]))
            raise RequestError(f"{name}: got {str(value)[:60]}, supported is {wanted} or left out", name)
        if name in LABELS and not isinstance(value, LABELS[name]):
            raise RequestError(f"{name}: got {type(value).__name__}, expected {LABELS[name].__name__}", name)
    return {name: data[name] for name in data if name not in NEUTRAL and name not in LABELS}


def _same(value: object, neutral: object) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def _refuse(body: Mapping[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if name in body:
            raise RequestError(f"{name}: unknown field; not a field of this endpoint", name)


def _check_model(asked: object, served: str) -> None:
    if asked is not None and not isinstance(asked, str):
        raise RequestError(f"model: got {str(asked)[:60]}, expected the name of a model", "model")
    if asked is not None and asked != served:
        raise RefusedError(
            404, "model_not_found", f"model: got {asked[:60]!r}, expected {served!r}, the one served", "model"
        )


def _flag(value: object, name: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name}: got {str(value)[:60]}, expected true or false", name)
    return bool(value)


def _stream_options(options: object, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise RequestError(
            "stream_options: expected a mapping, and only beside stream: true", "stream_options"
        )
    for name in options:
        if name not in _OPTIONS:
            param = f"stream_options.{name}"
            raise RequestError(f"{param}: unknown field; allowed: {', '.join(_OPTIONS)}", param)
    _flag(options.get("include_obfuscation"), "stream_options.include_obfuscation")
    return _flag(options.get("include_usage"), "stream_options.include_usage")


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _turn(turn: object) -> object:
    """A message without its empty fields, and with its text parts joined."""
    if not isinstance(turn, dict):
        return turn
    kept = {name: value for name, value in turn.items() if value is not None or name == "content"}
    parts = kept.get("content")
    if isinstance(parts, list) and parts and all(map(_is_text, parts)):
        kept["content"] = "".join(part["text"] for part in parts)
    return kept


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _in_clients_words(error: RequestError, data: Mapping[str, Any]) -> RequestError:
    """Clients call the ids of a prompt `prompt`, too, and may say `max_completion_tokens`."""
    renamed = {"prompt_token_ids": "prompt"}
    if data.get("max_completion_tokens") is not None:
        renamed["max_tokens"] = "max_completion_tokens"
    for ours, theirs in renamed.items():
        if error.param is not None and error.param.partition(".")[0] == ours:
            return RequestError(str(error).replace(ours, theirs, 1), error.param.replace(ours, theirs, 1))
    return error

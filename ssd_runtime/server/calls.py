"""Bodies in OpenAI's words, as calls of the engine.

Fields that clients always send pass where they change nothing. Whatever else OpenAI has and we have
not is refused by name, as everywhere; see `settings/request.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ssd_runtime.errors import RequestError
from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.server.errors import RefusedError
from ssd_runtime.settings.request import RequestBody, parse_request
from ssd_runtime.types import Request, SamplingParams

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "service_tier": ("auto", "default"),
    "store": (False,),
}
"""Fields that have only these values here: with them the answer is what it is without the field."""
LABELS: Mapping[str, type] = {
    "metadata": dict,
    "prompt_cache_key": str,
    "safety_identifier": str,
    "user": str,
}
"""Fields that never change an answer, and their types."""
CONTROLS = ("model", "stream", "stream_options")
"""Fields that say nothing of the answer itself."""
STREAM_OPTIONS = ("include_usage", "include_obfuscation", "continuous_usage_stats")
"""OpenAI's, and vLLM's, which load generators send."""


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed body: what to compute, and how to send it. stream_options: those that are on."""

    request: Request
    stream: bool
    stream_options: frozenset[str]


def parse(endpoint: Endpoint, data: Mapping[str, Any], model: str, defaults: SamplingParams) -> Call:
    """What `data` asks of `endpoint`; raises `RequestError`, with the status 404 for another model."""
    body = _without_neutral(data, {**NEUTRAL, **endpoint.neutral})
    check_model(body.pop("model", None), model)
    stream = _flag(body.pop("stream", None), "stream")
    options = _stream_options(body.pop("stream_options", None), stream)
    try:
        request = parse_request(
            endpoint.fields(body) | {"id": f"{endpoint.id_prefix}-{uuid.uuid4().hex}"},
            index=0,
            defaults=defaults,
            allowed=_fields(endpoint),
        )
    except RequestError as error:
        raise _in_clients_words(error) from None
    return Call(request, stream, options)


def _fields(endpoint: Endpoint) -> Iterator[str]:
    """Every field that a body may have; worked out when the first is asked for, which is seldom."""
    here = {*RequestBody.model_fields, *NEUTRAL, *endpoint.neutral, *LABELS, *CONTROLS}
    yield from here.difference(endpoint.elsewhere)


def _without_neutral(data: Mapping[str, Any], known: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    for name, value in data.items():
        if value is None:
            continue
        if name in known and not any(_same(value, neutral) for neutral in known[name]):
            wanted = " or ".join(map(repr, known[name]))
            raise RequestError(f"{name}: got {str(value)[:60]}, supported is {wanted} or left out", name)
        if name in LABELS and not isinstance(value, LABELS[name]):
            raise RequestError(f"{name}: got {type(value).__name__}, expected {LABELS[name].__name__}", name)
    return {name: data[name] for name in data if name not in known and name not in LABELS}


def _same(value: object, neutral: object) -> bool:
    return isinstance(value, bool) == isinstance(neutral, bool) and value == neutral


def check_model(asked: object, served: str) -> None:
    """Raise `RequestError` where another model is asked for, with the status 404."""
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


def _stream_options(options: object, stream: bool) -> frozenset[str]:
    if options is None:
        return frozenset()
    if not isinstance(options, dict) or not stream:
        raise RequestError(
            "stream_options: expected a mapping, and only beside stream: true", "stream_options"
        )
    for name in options:
        if name not in STREAM_OPTIONS:
            param = f"stream_options.{name}"
            raise RequestError(f"{param}: unknown field; allowed: {', '.join(STREAM_OPTIONS)}", param)
    return frozenset(name for name, value in options.items() if _flag(value, f"stream_options.{name}"))


def _in_clients_words(error: RequestError) -> RequestError:
    """Clients call the ids of a prompt `prompt`, too."""
    ours, theirs = "prompt_token_ids", "prompt"
    if error.param is not None and error.param.partition(".")[0] == ours:
        return RequestError(str(error).replace(ours, theirs, 1), error.param.replace(ours, theirs, 1))
    return error

"""`/openapi.json`: what the daemon takes and answers.

Bodies are described by the models and tables that check them, answers by `schemas.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ssd_runtime import __version__
from ssd_runtime.server import schemas
from ssd_runtime.server.admin import RELOAD_PATH, Reloaded
from ssd_runtime.server.request_schemas import REFERENCE, request_schemas

Schema = dict[str, Any]

JSON = "application/json"
ANSWERS: tuple[type[BaseModel], ...] = (
    schemas.Completion,
    schemas.CompletionChunk,
    schemas.ChatCompletion,
    schemas.ChatCompletionChunk,
    schemas.Error,
    schemas.Model,
    schemas.Models,
    schemas.Tokens,
    schemas.Detokenized,
    schemas.Health,
    schemas.Ready,
    schemas.Version,
    Reloaded,
)
ERRORS: Mapping[int, str] = {
    400: "The body or a field is wrong, prompt and answer do not fit the context, or the file is wrong.",
    401: "The API key is missing or wrong.",
    403: "The daemon has no API key, without which nobody may change it.",
    404: "Another model than the served one.",
    408: "The body did not come in time.",
    413: "The body is too large.",
    415: "The body is not sent as application/json.",
    429: "Too many requests are served or wait already.",
    500: "The engine failed.",
    503: "The daemon is loading, stopping, or its engine has stopped.",
    504: "The request took longer than server.request_timeout.",
}
_POSTED = (400, 401, 404, 408, 413, 415, 429, 500, 503)


@cache
def document(model: str) -> Schema:
    """The document of a daemon that serves `model`, in OpenAPI 3.1."""
    _, answers = models_json_schema([(model, "serialization") for model in ANSWERS], ref_template=REFERENCE)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ssd_runtime",
            "version": __version__,
            "description": "A large language model behind OpenAI's endpoints. `null` means left out.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _untitled(request_schemas(model) | answers["$defs"]),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _paths() -> Schema:
    return {
        "/v1/completions": _generating("Continue a prompt as it stands.", "Completion"),
        "/v1/chat/completions": _generating("Answer a conversation.", "ChatCompletion"),
        "/tokenize": _posting("The ids of a text or a conversation.", "TokenizeBody", "Tokens"),
        "/detokenize": _posting("The text that ids spell.", "DetokenizeBody", "Detokenized"),
        "/v1/models": _getting("The list of the served model.", "Models"),
        "/v1/models/{model}": _getting("The served model.", "Model", (401, 404)) | {"parameters": [_MODEL]},
        RELOAD_PATH: _reloading(),
        "/version": _getting("The runtime's version.", "Version"),
        "/openapi.json": _getting("This document.", None),
        "/health": _state("Whether the process works.", "Health"),
        "/ready": _state("Whether requests are taken.", "Ready"),
        "/metrics": {
            "get": {
                "summary": "Metrics for Prometheus.",
                "responses": {
                    "200": {
                        "description": "Metrics.",
                        "content": {"text/plain": {"schema": {"type": "string"}}},
                    }
                },
                "security": [],
            }
        },
    }


_MODEL: Schema = {
    "name": "model",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1},
}
_REQUEST_ID: Schema = {"x-request-id": {"description": "The id in the log.", "schema": {"type": "string"}}}


def _generating(summary: str, name: str) -> Schema:
    operation = _posting(summary, f"{name}Body", name, (*_POSTED, 504))
    answer = operation["post"]["responses"]["200"]
    answer["headers"] = _REQUEST_ID
    kinds = [{"$ref": REFERENCE.format(model=kind)} for kind in (f"{name}Chunk", "Error")]
    event = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    answer["content"]["text/event-stream"] = {
        "schema": {
            "type": "object",
            "properties": {"data": {"anyOf": [event, {"const": "[DONE]"}]}},
            "required": ["data"],
        },
        "description": f"With stream: true. The data of events are {name}Chunk or Error, the last is [DONE].",
    }
    return operation


def _posting(summary: str, body: str, answer: str, errors: Sequence[int] = _POSTED) -> Schema:
    operation = _operation(summary, answer, errors)
    operation["requestBody"] = {"required": True, "content": _json(body)}
    return {"post": operation}


def _reloading() -> Schema:
    operation = _operation("Read the configuration again.", "Reloaded", (400, 401, 403, 500, 503))
    return {"post": operation | {"security": [{"key": []}]}}


def _getting(summary: str, answer: str | None, errors: Sequence[int] = (401,)) -> Schema:
    return {"get": _operation(summary, answer, errors)}


def _state(summary: str, answer: str) -> Schema:
    """What may be asked without a key, and says the same with 503 where things are bad."""
    operation = _operation(summary, answer, ()) | {"security": []}
    operation["responses"]["503"] = {"description": "It is not so.", "content": _json(answer)}
    return {"get": operation}


def _operation(summary: str, answer: str | None, errors: Sequence[int]) -> Schema:
    responses: Schema = {"200": {"description": "As asked.", "content": _json(answer)}}
    for status in errors:
        responses[str(status)] = {"description": ERRORS[status], "content": _json("Error")}
    return {"summary": summary, "responses": responses}


def _untitled(schema: Any) -> Any:
    """Without pydantic's titles, which are the names again."""
    if isinstance(schema, list):
        return list(map(_untitled, schema))
    if not isinstance(schema, dict):
        return schema
    return {key: _untitled(value) for key, value in schema.items() if key != "title"}


def _json(name: str | None) -> Schema:
    schema = {"type": "object"} if name is None else {"$ref": REFERENCE.format(model=name)}
    return {JSON: {"schema": schema}}

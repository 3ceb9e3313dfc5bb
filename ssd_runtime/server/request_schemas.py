"""JSON schemas of the bodies that endpoints take, from the models and tables that check them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import models_json_schema

from ssd_runtime.server.calls import LABELS, NEUTRAL, STREAM_OPTIONS
from ssd_runtime.server.endpoints import Chat, Completions, Endpoint
from ssd_runtime.server.tokens import ChatBody, DetokenizeBody, TextBody
from ssd_runtime.server.turns import EMPTY
from ssd_runtime.settings.request import NOT_BUILT, NOT_OFFERED, RequestBody

Schema = dict[str, Any]

REFERENCE = "#/components/schemas/{model}"
_JSON_TYPES: Mapping[type, str] = {dict: "object", str: "string"}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string", "pattern": "^[^\\u0000]*$"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}


def request_schemas(model: str) -> dict[str, Schema]:
    """The schemas of all bodies and of what is in them, by name; `model` is the served one."""
    bodies = [(body, "validation") for body in (RequestBody, TextBody, ChatBody, DetokenizeBody)]
    _, found = models_json_schema(bodies, ref_template=REFERENCE)  # type: ignore[arg-type]  # modes are texts
    schemas: dict[str, Schema] = found["$defs"]
    common = schemas.pop("RequestBody")["properties"]
    schemas |= _turns(schemas["Turn"])
    named: Schema = {"enum": [model, None], "description": "The served model."}
    schemas["CompletionBody"] = _body(Completions(), common, {"prompt": _prompt(common), "model": named})
    schemas["ChatCompletionBody"] = _body(
        Chat(),
        common,
        {"messages": _without_null(common["messages"]), "echo": {"enum": [False, None]}, "model": named},
    )
    for name in ("TextBody", "ChatBody", "DetokenizeBody"):
        schemas[name]["properties"]["model"] = named
    schemas["TokenizeBody"] = {"anyOf": [_reference(schema) for schema in ("TextBody", "ChatBody")]}
    return schemas


def _body(endpoint: Endpoint, common: Mapping[str, Schema], own: Mapping[str, Schema]) -> Schema:
    """One endpoint's body. own: its fields that are not as in `RequestBody`; the first is required."""
    neutral = {**NEUTRAL, **endpoint.neutral}
    properties: dict[str, Schema] = {name: {"type": "null"} for name in sorted({*NOT_BUILT, *NOT_OFFERED})}
    properties |= {name: schema for name, schema in common.items() if name not in endpoint.elsewhere}
    properties |= {name: {"enum": [*values, None]} for name, values in neutral.items()}
    properties |= {name: {"type": [_JSON_TYPES[kind], "null"]} for name, kind in LABELS.items()}
    options = {"type": ["object", "null"], "properties": dict.fromkeys(STREAM_OPTIONS, _FLAG)}
    properties |= {
        "stream": _FLAG,
        "stream_options": options | {"additionalProperties": False, "description": "Beside stream: true."},
    }
    return {
        "type": "object",
        "properties": properties | dict(own),
        "required": [next(iter(own))],
        "additionalProperties": False,
    }


def _prompt(common: Mapping[str, Schema]) -> Schema:
    """A text, ids, or a list of one of either."""
    forms = [_without_null(common[name]) for name in ("prompt", "prompt_token_ids")]
    forms = [{key: value for key, value in form.items() if key != "description"} for form in forms]
    return {
        "anyOf": [*forms, *({"type": "array", "items": form, "minItems": 1, "maxItems": 1} for form in forms)]
    }


def _turns(turn: Schema) -> dict[str, Schema]:
    """Messages as clients may write them, see `turns.py`: with a content, or with calls in its place."""
    properties: dict[str, Schema] = dict(turn["properties"])
    content, calls = _without_null(properties["content"]), _without_null(properties["tool_calls"])
    for name, values in EMPTY.items():
        known = properties.get(name)
        properties[name] = {"anyOf": [known, {"enum": list(values)}]} if known else {"enum": list(values)}
    content = {"anyOf": [content, {"type": "array", "items": _TEXT_PART}]}
    nothing = {"type": "null"}
    said = {"properties": properties | {"content": content}, "required": ["role", "content"]}
    called = {
        "properties": properties | {"content": {"anyOf": [content, nothing]}, "tool_calls": calls},
        "required": ["role", "tool_calls"],
    }
    return {
        "Turn": {"anyOf": [_reference("SaidTurn"), _reference("CalledTurn")]},
        "SaidTurn": turn | said,
        "CalledTurn": turn | called,
    }


def _without_null(schema: Schema) -> Schema:
    form: Schema
    [form] = [form for form in schema["anyOf"] if form != {"type": "null"}]
    return form | {"description": schema.get("description", "")}


def _reference(name: str) -> Schema:
    return {"$ref": REFERENCE.format(model=name)}

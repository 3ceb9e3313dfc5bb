"""Structured output as requests ask for it, in OpenAI's words and in vLLM's older and newer ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ssd_runtime.errors import RequestError
from ssd_runtime.types import StructuredOutput, StructureKind

FORMATS = "{'type': 'text'}, {'type': 'json_object'} or {'type': 'json_schema', 'json_schema': {'schema': …}}"
FORMATS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object"]}},
            "required": ["type"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "properties": {"name": {}, "description": {}, "strict": {}, "schema": {"type": "object"}},
                    "required": ["schema"],
                    "additionalProperties": False,
                },
            },
            "required": ["type", "json_schema"],
            "additionalProperties": False,
        },
    ]
}
"""`FORMATS` as JSON schema."""
_TEXT = {"type": "string", "minLength": 1}
OUTPUTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "json": {"type": ["object", "string", "null"]},
        "json_object": {"enum": [True, None]},
        "regex": {"anyOf": [_TEXT, {"type": "null"}]},
        "choice": {"anyOf": [{"type": "array", "items": _TEXT, "minItems": 1}, {"type": "null"}]},
        "grammar": {"anyOf": [_TEXT, {"type": "null"}]},
    },
    "additionalProperties": False,
}
"""What `of_structured_outputs` takes, but for there being one of the fields."""
_FIELDS = ("json", "json_object", "regex", "choice", "grammar")


def of_response_format(asked: Mapping[str, Any], name: str = "response_format") -> StructuredOutput | None:
    """What OpenAI's `response_format` asks for; None for plain text. Raises `RequestError`."""
    match dict(asked):
        case {"type": "text", **rest} if not rest:
            return None
        case {"type": "json_object", **rest} if not rest:
            return StructuredOutput(StructureKind.JSON, '{"type": "object"}', name)
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as described, **rest} if (
            not rest
        ):
            return _schema(schema, described, name)
    raise RequestError(f"{name}: got {str(asked)[:60]}, expected {FORMATS}", name)


def of_structured_outputs(asked: Mapping[str, Any]) -> StructuredOutput | None:
    """What vLLM's `structured_outputs` asks for: one of json, json_object, regex, choice and grammar."""
    name = "structured_outputs"
    given = {key: value for key, value in asked.items() if value is not None}
    if len(given) != 1 or not given.keys() <= set(_FIELDS):
        raise RequestError(
            f"{name}: got {', '.join(given) or 'nothing'}, expected one of {', '.join(_FIELDS)}", name
        )
    [(key, value)] = given.items()
    return of_guided(key, value, f"{name}.{key}")


def of_guided(key: str, value: Any, name: str) -> StructuredOutput:
    """What the field `name` asks for; `key` is one of vLLM's kinds. Raises `RequestError`."""
    match key, value:
        case "json", dict() | str():
            text = value if isinstance(value, str) else json.dumps(value)
            return StructuredOutput(StructureKind.JSON, text, name)
        case "json_object", True:
            return StructuredOutput(StructureKind.JSON, '{"type": "object"}', name)
        case "regex", str(text) if text:
            return StructuredOutput(StructureKind.REGEX, text, name)
        case "grammar", str(text) if text:
            return StructuredOutput(StructureKind.LARK, text, name)
        case "choice", [*options] if options and all(
            isinstance(option, str) and option for option in options
        ):
            words = " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
            return StructuredOutput(StructureKind.LARK, f"start: {words}", name)
    expected = {
        "json": "a JSON schema",
        "json_object": "true",
        "regex": "a regular expression",
        "grammar": "a grammar in Lark's notation",
        "choice": "a list of at least one text, none of them empty",
    }
    raise RequestError(f"{name}: got {str(value)[:60]}, expected {expected[key]}", name)


def _schema(schema: dict[str, Any], described: Mapping[str, Any], name: str) -> StructuredOutput:
    unknown = sorted(described.keys() - {"name", "description", "schema", "strict"})
    if unknown:
        raise RequestError(
            f"{name}.json_schema.{unknown[0]}: unknown field", f"{name}.json_schema.{unknown[0]}"
        )
    return StructuredOutput(StructureKind.JSON, json.dumps(schema), name)

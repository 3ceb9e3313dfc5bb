"""Answers of a schema are documents of that schema, by another library's judgement, in every mode.

`JSON_SCHEMA_TEST_SUITE` may name a folder of the public suite (tests/draft2020-12 of
json-schema-org/JSON-Schema-Test-Suite); then every schema in it that is supported is tried as well.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from ssd_runtime.errors import RequestError
from ssd_runtime.settings.request import parse_params
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.toy import ToyTokenizer, toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Output, Request, SamplingParams

VOCAB = 256
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
TOGETHER = 30
HASTE = {ord(char): 5.0 for char in '"}]'} | {0: 8.0, ord("."): -5.0, ord("e"): -5.0, ord("E"): -5.0}
"""What ends strings, objects, arrays and answers is made likely, so that the toy comes to an end."""
SCHEMAS: dict[str, dict[str, Any]] = {
    "anything": {},
    "a constant": {"const": {"a": [1, None, True], "b": "x"}},
    "an enumeration": {"enum": ["red", 7, None, [1], {"k": 2}]},
    "a string of some length": {"type": "string", "minLength": 2, "maxLength": 9},
    "a pattern": {"type": "string", "pattern": "^[a-f]{2}-[0-9]+$"},
    "a date": {"type": "string", "format": "date"},
    "an integer in bounds": {"type": "integer", "minimum": -3, "exclusiveMaximum": 120},
    "a multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "a number": {"type": "number", "minimum": 0.5, "maximum": 2},
    "one of several types": {"type": ["boolean", "null", "integer"]},
    "an array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 5},
    "a tuple": {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"enum": ["x"]}],
        "items": False,
        "minItems": 2,
    },
    "an object": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "more properties": {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    "either": {"anyOf": [{"type": "boolean"}, {"type": "object", "required": ["z"]}]},
    "all": {"allOf": [{"type": "integer", "minimum": 4}, {"maximum": 9}]},
    "a reference": {
        "$defs": {"n": {"type": "integer", "minimum": 0}},
        "type": "array",
        "items": {"$ref": "#/$defs/n"},
        "maxItems": 3,
    },
    "a tree": {
        "type": "object",
        "properties": {
            "value": {"type": "integer"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    },
    "names beyond ASCII": {
        "type": "object",
        "properties": {"größe": {"const": "groß €"}},
        "required": ["größe"],
    },
}


class Bytes(ToyTokenizer):
    """A token a byte; id 0 is the end."""

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer`."""
        return bytes(token for token in token_ids if token).decode(errors="replace")

    def spellings(self) -> list[bytes]:
        """See `Tokenizer`."""
        return [bytes([token]) for token in range(VOCAB)]


TARGET = replace(toy_decoder(1, vocab=VOCAB), tokenizer=Bytes(VOCAB))


def asked(schema: dict[str, Any], name: str, seed: int = 0) -> Request:
    fields = {"guided_json": schema, "temperature": 1.0, "max_tokens": 400, "seed": seed, "logit_bias": HASTE}
    return Request(name, prompt_token_ids=(9, 30, 12), params=parse_params(fields, SamplingParams()))


def rig(mode: Mode) -> Rig:
    worker = None if mode is Mode.AUTOREGRESSIVE else draft_worker(decoder_draft(TARGET, 4096, 16), 8, VOCAB)
    return Rig(
        TARGET, worker, mode=mode, num_blocks=1024, block_size=16, max_batch_size=TOGETHER, context=512
    )


def supported(schemas: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those that are not refused for a reason that the message gives."""
    kept, refusals = {}, {}
    for name, schema in schemas.items():
        try:
            rig(Mode.AUTOREGRESSIVE).prepare(asked(schema, name))
        except RequestError as error:
            refusals[name] = str(error)
        else:
            kept[name] = schema
    assert all(message.startswith("guided_json: cannot be followed: ") for message in refusals.values())
    return kept


def check(schema: dict[str, Any], answer: Answer, pieces: Sequence[Any]) -> bool:
    """Whether it came to its end, after its document was found to be one; the stream said the same."""
    assert "".join(piece.text for piece in pieces if isinstance(piece, Output)) == answer.text
    if answer.finish_reason is not FinishReason.STOP:
        return False
    document = json.loads(answer.text)
    Draft202012Validator(schema).validate(document)
    return True


def answered(schemas: dict[str, dict[str, Any]], mode: Mode, seed: int) -> dict[str, tuple[int, ...]]:
    """Ids of the finished answers, thirty requests at once; all documents are valid."""
    ids: dict[str, tuple[int, ...]] = {}
    names = list(schemas)
    for start in range(0, len(names), TOGETHER):
        made, some = rig(mode), names[start : start + TOGETHER]
        asyncio.run(made.answers(*(asked(schemas[name], name, seed) for name in some)))
        for name in some:
            if check(schemas[name], made.answer(name), made.pieces[name]):
                ids[name] = made.answer(name).token_ids
    return ids


@pytest.mark.parametrize("seed", range(2))
def test_answers_are_documents_of_their_schemas(seed: int) -> None:
    """A keyword or two each; nearly all come to their end, in each mode with the same ids."""
    assert supported(SCHEMAS) == SCHEMAS
    plain = answered(SCHEMAS, Mode.AUTOREGRESSIVE, seed)
    assert len(plain) >= len(SCHEMAS) - 3
    for mode in MODES[1:]:
        assert answered(SCHEMAS, mode, seed) == plain


def suite() -> dict[str, dict[str, Any]]:
    folder = os.environ.get("JSON_SCHEMA_TEST_SUITE")
    if folder is None:
        pytest.skip("JSON_SCHEMA_TEST_SUITE names no folder")
    schemas = {}
    for path in sorted(Path(folder).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            if isinstance(group["schema"], dict):
                schemas[f"{path.stem}: {group['description']}"] = group["schema"]
    return schemas


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_answers_are_documents_of_the_public_suites_schemas(capsys: pytest.CaptureFixture[str]) -> None:
    """Every supported schema, in every mode; how many there are is shown."""
    every = suite()
    kept = supported(every)
    plain = answered(kept, Mode.AUTOREGRESSIVE, 0)
    for mode in MODES[1:]:
        assert answered(kept, mode, 0) == plain
    counts = f"{len(every)} schemas, {len(kept)} supported, {len(plain)} answers came to an end, all valid"
    with capsys.disabled():
        sys.stdout.write(f"\n{counts}\n")

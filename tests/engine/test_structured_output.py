"""Structured output is what was asked for, whoever drafts: valid, ended, and plain decoding's text.

Cases B39 and B41 of the public reports: drafts that the grammar forbids, thirty requests at once, blanks.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.errors import RequestError
from ssd_runtime.settings.request import parse_params
from ssd_runtime.speculation.commands import BuildResult
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.toy import ToyTokenizer, toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

VOCAB = 96
TARGET, OTHER = toy_decoder(1, vocab=VOCAB), toy_decoder(2, vocab=VOCAB)
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
EACH_MODE = pytest.mark.parametrize("mode", MODES)
EACH_DRAFT = pytest.mark.parametrize("draft", ["self", "other", "ngram"])
PERSON = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}


def asked(**fields: Any) -> Request:
    """A request for at most 120 tokens; `fields` as in JSON."""
    chosen = {"temperature": 1.0, "max_tokens": 120, "seed": 0} | fields
    return Request("a", prompt_token_ids=(9, 30, 12), params=parse_params(chosen, SamplingParams()))


def schema(of: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": of}}}


def rig(mode: Mode, draft: str = "self", **chosen: Any) -> Rig:
    worker: Any = None
    if mode is not Mode.AUTOREGRESSIVE and draft == "ngram":
        worker = ProposerWorker(NgramProposer(min_match=1), VOCAB)
    elif mode is not Mode.AUTOREGRESSIVE:
        worker = draft_worker(decoder_draft(TARGET if draft == "self" else OTHER), 8, VOCAB)
    return Rig(TARGET, worker, mode=mode, **{"length": 4, "fallback": ("draft",)} | chosen)


def answers(requests: list[Request], mode: Mode, draft: str = "self", **chosen: Any) -> list[Answer]:
    return asyncio.run(rig(mode, draft, **chosen).answers(*requests))


@lru_cache(maxsize=1024)
def plain(request: Request) -> Answer:
    return answers([request], Mode.AUTOREGRESSIVE)[0]


@EACH_MODE
@EACH_DRAFT
@pytest.mark.parametrize("seed", range(3))
def test_a_schema_is_followed_to_its_end(mode: Mode, draft: str, seed: int) -> None:
    """Every value as the schema has it, then the end token, and nothing behind it."""
    request = asked(seed=seed, **schema(PERSON))
    [answer] = answers([request], mode, draft)
    value = json.loads(answer.text)
    assert isinstance(value["ok"], bool)
    assert 0 <= value["n"] <= 99
    assert answer.finish_reason is FinishReason.STOP
    assert answer.token_ids[-1] == 0
    assert (answer.token_ids, answer.text) == (plain(request).token_ids, plain(request).text)


@EACH_MODE
@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"guided_regex": "[A-F]{3}-[0-9]{2}"}, "[A-F]{3}-[0-9]{2}"),
        ({"structured_outputs": {"regex": "x+y"}}, "x+y"),
        ({"guided_choice": ["yes", "no", 'it"s']}, 'yes|no|it"s'),
        ({"structured_outputs": {"choice": ["A.B", "A*B"]}}, r"A\.B|A\*B"),
        ({"guided_grammar": 'start: "<" /[0-9]{1,4}/ ("," /[0-9]/)* ">"'}, r"<[0-9]{1,4}(,[0-9])*>"),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, "a|b"),
    ],
)
def test_every_way_to_describe_a_text_is_followed(mode: Mode, fields: dict[str, Any], pattern: str) -> None:
    """vLLM's older and newer names."""
    request = asked(logit_bias={0: 4.0}, **fields)
    [answer] = answers([request], mode)
    assert re.fullmatch(pattern, answer.text), answer.text
    assert answer.token_ids == plain(request).token_ids


@EACH_MODE
def test_thirty_json_objects_at_once(mode: Mode) -> None:
    """Case B39: K of 4, drafts that no grammar ever saw (other weights); the engine lives on."""
    requests = [
        replace(
            asked(seed=i, response_format={"type": "json_object"}, logit_bias={94: 6.0, 3: 2.0}), id=str(i)
        )
        for i in range(30)
    ]
    for request, answer in zip(requests, answers(requests, mode, "other", max_batch_size=8), strict=True):
        assert answer.token_ids == plain(request).token_ids
        if answer.finish_reason is FinishReason.STOP:
            assert isinstance(json.loads(answer.text), dict)
    assert any(plain(request).finish_reason is FinishReason.STOP for request in requests)


@EACH_MODE
def test_blanks_do_not_go_on_for_ever(mode: Mode) -> None:
    """Case B41: a model that wants nothing but spaces gets at most twenty, and valid JSON."""
    request = asked(temperature=0.0, logit_bias={1: 100.0}, max_tokens=200, **schema(PERSON))
    [answer] = answers([request], mode)
    assert json.loads(answer.text).keys() == {"ok", "n"}
    assert max(map(len, re.findall(" +", answer.text))) <= 20
    assert answer.finish_reason is FinishReason.STOP


@EACH_MODE
def test_a_draft_that_knows_the_grammar_is_accepted(mode: Mode) -> None:
    """The target as its own draft, under the same grammar, is never wrong."""
    [answer] = answers([asked(**schema(PERSON))], mode)
    stats = answer.speculation
    assert stats.accepted_tokens == stats.draft_tokens
    assert (stats.draft_tokens > 0) is (mode is not Mode.AUTOREGRESSIVE)


def test_no_outcome_is_prepared_that_the_grammar_excludes() -> None:
    """Where only one token can follow, the budget is not spent on others."""
    seen: list[BuildResult] = []

    class Watched:
        def __init__(self) -> None:
            self._worker = draft_worker(decoder_draft(TARGET), 8, VOCAB)

        def execute(self, command: Any) -> Any:
            result = self._worker.execute(command)
            if isinstance(result, BuildResult):
                seen.append(result)
            return result

    made = Rig(TARGET, Watched(), mode=Mode.SSD)
    [answer] = asyncio.run(made.answers(asked(guided_choice=["abcdefghij"])))
    branches = [branch for result in seen for row in result.rows for branch in row or ()]
    text = TARGET.tokenizer.decode([branch.bonus for branch in branches])
    assert answer.text == "abcdefghij"
    assert branches
    assert set(text) <= set("abcdefghij")


@EACH_MODE
@pytest.mark.parametrize("limit", range(1, 12))
def test_a_length_limit_cuts_inside_the_structure(mode: Mode, limit: int) -> None:
    """The reason says so; what came is the beginning of the whole."""
    whole = plain(asked(**schema(PERSON)))
    [answer] = answers([asked(max_tokens=limit, **schema(PERSON))], mode)
    assert answer.token_ids == whole.token_ids[:limit]
    assert answer.finish_reason is FinishReason.LENGTH


def test_an_impossible_wish_beside_a_grammar_fails_its_own_request() -> None:
    """A minimum that the grammar's end does not reach; the neighbour has its answer."""
    made = rig(Mode.SSD)
    made.submit(replace(asked(guided_choice=["a"], min_tokens=5), id="short"))
    made.submit(asked(guided_choice=["abcdef"], min_tokens=5))
    asyncio.run(made.run())
    assert made.answer("a").text == "abcdef"
    with pytest.raises(RequestError, match="leave no token possible"):
        made.answer("short")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"response_format": {"type": "xml"}}, "response_format: got {'type': 'xml'}, expected {'type'"),
        ({"response_format": {"type": "json_schema"}}, "response_format: got"),
        (schema({"type": "objct"}), "response_format: cannot be followed: Invalid type: objct"),
        (
            schema({"type": "string", "contains": 1}),
            "response_format: cannot be followed: Unimplemented keys",
        ),
        ({"guided_regex": "(a"}, "guided_regex: cannot be followed"),
        ({"guided_regex": ""}, "guided_regex: got"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar: cannot be followed"),
        ({"guided_json": "{"}, "guided_json: "),
        ({"guided_choice": []}, "guided_choice: got [], expected a list of at least one"),
        ({"structured_outputs": {}}, "structured_outputs: got nothing, expected one of json"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs: got regex, json"),
        ({"structured_outputs": {"yaml": "a"}}, "structured_outputs: got yaml"),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex: got it beside guided_json"),
        ({"guided_regex": "a", "ignore_eos": True}, "ignore_eos: got true beside guided_regex"),
    ],
)
def test_what_cannot_be_followed_is_refused(fields: dict[str, Any], named: str) -> None:
    """Before anything is computed, with the name of the field and the reason."""
    with pytest.raises(RequestError) as caught:
        rig(Mode.AUTOREGRESSIVE).submit(asked(**fields))
    assert str(caught.value).startswith(named)


def test_a_model_without_an_end_token_is_refused_structured_output() -> None:
    """It could not end."""
    endless = ToyTokenizer(VOCAB)
    endless.eos_token_ids = ()
    with pytest.raises(RequestError, match="no end token"):
        Rig(replace(TARGET, tokenizer=endless)).submit(asked(guided_regex="a"))


def test_a_vocabulary_that_cannot_spell_every_text_is_refused_structured_output() -> None:
    """Sixty-three characters and no braces: no JSON, and no promise that could not be kept."""
    with pytest.raises(RequestError, match="guided_regex: this model's tokens cannot spell every text"):
        Rig(toy_decoder(1)).submit(asked(guided_regex="a"))


class Wasteful(ToyTokenizer):
    """Has a token for `"x"` and for two spaces, and spells everything with a space in front, as some do."""

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return super().encode(f" {text}") if text else []

    def spellings(self) -> list[bytes]:
        """See `Tokenizer`."""
        return [*super().spellings()[:-2], b'"x"', b"  "]


@EACH_MODE
def test_what_must_come_is_spelt_byte_by_byte_as_it_must(mode: Mode) -> None:
    """Whatever the tokenizer does to a text by itself: the tokens' bytes are the grammar's."""
    tokenizer = Wasteful(VOCAB + 2)
    model = replace(toy_decoder(1, vocab=VOCAB + 2), tokenizer=tokenizer)
    worker = None if mode is Mode.AUTOREGRESSIVE else draft_worker(decoder_draft(model), 8, VOCAB + 2)
    made = Rig(model, worker, mode=mode)
    [answer] = asyncio.run(made.answers(asked(guided_grammar='start: "{" /[ ]*/ "\\"x\\": end}"')))
    spelt = b"".join(tokenizer.spellings()[token] for token in answer.token_ids[:-1])
    assert re.fullmatch(rb'\{ *"x": end\}', spelt)


@EACH_MODE
def test_every_end_token_may_end_it(mode: Mode) -> None:
    """A tokenizer with two: the grammar allows both where the text may end, and neither before."""
    two = ToyTokenizer(VOCAB)
    two.eos_token_ids = (0, 60)
    model = replace(TARGET, tokenizer=two)
    made = Rig(model, None, mode=Mode.AUTOREGRESSIVE)
    [answer] = asyncio.run(made.answers(asked(guided_regex="ab", logit_bias={60: 50.0})))
    assert answer.token_ids == (*two.encode("ab"), 60)


fields = st.one_of(
    st.just({}),
    st.just(schema(PERSON)),
    st.just({"guided_regex": "[a-z]{1,9}!"}),
    st.just({"guided_choice": ["left", "lead", "right"]}),
    st.just({"response_format": {"type": "json_object"}, "logit_bias": {94: 5.0}}),
)
others = st.fixed_dictionaries(
    {"seed": st.integers(0, 20)},
    optional={
        "temperature": st.sampled_from((0.0, 0.6)),
        "top_p": st.just(0.7),
        "frequency_penalty": st.just(1.0),
        "repetition_penalty": st.just(1.3),
        "max_tokens": st.integers(1, 30),
        "stop": st.just("e"),
    },
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(fields, others), min_size=1, max_size=4),
    st.sampled_from(MODES[1:]),
    st.sampled_from(("self", "other", "ngram")),
    st.integers(1, 8),
)
def test_structure_is_plain_decodings_in_any_company(
    given_fields: list[tuple[dict[str, Any], dict[str, Any]]], mode: Mode, draft: str, length: int
) -> None:
    """Rows with different grammars and rows without, any draft, any length."""
    requests = [
        replace(asked(**{"max_tokens": 30} | one | other), id=str(i))
        for i, (one, other) in enumerate(given_fields)
    ]
    for request, answer in zip(requests, answers(requests, mode, draft, length=length), strict=True):
        expected = plain(request)
        assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
        assert answer.finish_reason == expected.finish_reason

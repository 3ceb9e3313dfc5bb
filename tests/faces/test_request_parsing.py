"""What one JSON object means as a request, and how each mistake is named."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.errors import RequestError
from ssd_runtime.settings.request import (
    NOT_BUILT,
    NOT_OFFERED,
    RequestBody,
    default_params,
    derive_seed,
    parse_params,
    parse_request,
)
from ssd_runtime.settings.schema import EngineSettings
from ssd_runtime.types import Message, Mode, Request, SamplingParams, SpeculationParams

DEFAULTS = SamplingParams(temperature=0.7, top_p=0.9, max_tokens=5)


def parse(data: dict[str, Any], **options: Any) -> Request:
    return parse_request(data, index=3, defaults=DEFAULTS, **options)


def test_a_prompt_alone_takes_every_default() -> None:
    """The id is the place in the input, the parameters are the defaults."""
    assert parse({"prompt": "hi"}) == Request(id="3", prompt="hi", params=DEFAULTS)


def test_every_field_arrives_in_the_request() -> None:
    """Each parameter of the contract is applied, none is dropped."""
    request = parse(
        {
            "id": "a",
            "messages": [{"role": "user", "content": "hi"}],
            "temperature": 0,
            "top_p": 1,
            "top_k": 5,
            "min_p": 0.1,
            "max_tokens": 7,
            "stop": ["x", "y"],
            "stop_token_ids": [1, 2],
            "ignore_eos": True,
            "seed": 9,
            "speculation": {"enabled": False, "mode": "ssd", "length": 2},
        }
    )
    assert request == Request(
        id="a",
        messages=(Message("user", "hi"),),
        params=SamplingParams(
            temperature=0.0,
            top_p=1.0,
            top_k=5,
            min_p=0.1,
            max_tokens=7,
            stop=("x", "y"),
            stop_token_ids=(1, 2),
            ignore_eos=True,
            seed=9,
        ),
        speculation=SpeculationParams(enabled=False, mode=Mode.SSD, length=2),
    )


def test_null_means_left_out() -> None:
    """A client that sends null for what it does not set gets the defaults."""
    names = ("id", "messages", "temperature", "stop", "seed", "speculation", "logprobs")
    assert parse({"prompt": "hi", **dict.fromkeys(names)}) == parse({"prompt": "hi"})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"id": 12}, "12"),
        ({"id": "x"}, "x"),
        ({}, "3"),
    ],
)
def test_ids_are_texts(given: dict[str, Any], expected: str) -> None:
    """An integer id becomes its text."""
    assert parse({"prompt": "hi", **given}).id == expected


def test_a_whole_number_may_have_a_point() -> None:
    """JSON knows one kind of number, and some clients write every one with a fraction."""
    given = {"top_k": 5.0, "max_tokens": 7.0, "seed": 9.0, "stop_token_ids": [1.0, 2.0], "n": 2.0}
    params = parse({"prompt": "hi", **given}).params
    assert (params.top_k, params.max_tokens, params.seed, params.n) == (5, 7, 9, 2)
    assert all(isinstance(token, int) for token in (*params.stop_token_ids, params.seed))


def test_one_stop_text_is_a_list_of_one() -> None:
    """`stop` may be a text."""
    assert parse({"prompt": "hi", "stop": "x"}).params.stop == ("x",)


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_is_off_at_zero_and_minus_one(off: int) -> None:
    """Both spellings of "off" mean 0 inside."""
    assert parse({"prompt": "hi", "top_k": off}).params.top_k == 0


@pytest.mark.parametrize(("given", "expected"), [(-1, 2**64 - 1), (-(2**63), 2**63), (2**64 - 1, 2**64 - 1)])
def test_seeds_of_64_bits_are_taken_signed_or_unsigned(given: int, expected: int) -> None:
    """A negative seed is the unsigned one with the same bits."""
    assert parse({"prompt": "hi", "seed": given}).params.seed == expected


def test_a_seed_is_derived_only_for_requests_without_one() -> None:
    """The command's seed gives each line its own; a line's own seed wins."""
    assert parse({"prompt": "hi"}, seed=5).params.seed == derive_seed(5, 3)
    assert parse({"prompt": "hi", "seed": 1}, seed=5).params.seed == 1
    assert parse({"prompt": "hi"}).params.seed is None


def test_derived_seeds_are_splitmix64() -> None:
    """The published first outputs of SplitMix64 started at 1234567."""
    assert [derive_seed(1234567, index) for index in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_defaults_come_from_the_settings() -> None:
    """`engine.temperature` and `engine.top_p` are for requests that do not say."""
    assert default_params(EngineSettings(temperature=0.3, top_p=0.5)) == SamplingParams(
        temperature=0.3, top_p=0.5
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("temperature", -1, "temperature: got -1, expected a number from 0 (greedy) to 2"),
        ("temperature", float("nan"), "temperature: got nan, expected a number"),
        ("temperature", float("inf"), "temperature: got inf, expected a number"),
        ("temperature", 10**400, "temperature: got 1000"),
        ("temperature", "hot", "temperature: got 'hot', expected a number"),
        ("temperature", True, "temperature: got True, expected a number"),
        ("top_p", 0, "top_p: got 0, expected a number above 0"),
        ("top_k", -2, "top_k: got -2, expected an integer"),
        ("top_k", True, "top_k: got True, expected an integer"),
        ("top_k", 1.5, "top_k: got 1.5, expected an integer"),
        ("min_p", 1.5, "min_p: got 1.5, expected a number from 0"),
        ("max_tokens", 0, "max_tokens: got 0, expected an integer, at least 1"),
        ("stop", ["a"] * 17, "stop: got ['a', "),
        ("stop", 5, "stop: got 5, expected a text or a list of at most 16"),
        ("seed", 2**64, "seed: got 18446744073709551616, expected an integer of 64 bits"),
        ("ignore_eos", 1, "ignore_eos: got 1, expected true or false"),
        ("id", True, "id: got True, expected a text or an integer"),
        ("id", "\ud800", "id: got '\\ud800', expected a text"),
        ("raw", "yes", "raw: got 'yes', expected true or false"),
        ("speculation", True, "speculation: got True, expected a mapping"),
        ("tempratur", 1, "tempratur: unknown field; did you mean 'temperature'? allowed: "),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(field: str, value: object, message: str) -> None:
    """Field, what was got, what was expected; `param` is the field."""
    with pytest.raises(RequestError) as caught:
        parse({"prompt": "hi", field: value})
    assert str(caught.value).startswith(message)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "colour": "y"}]}, "messages.0.colour"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": []}, "messages"),
        ({"prompt_token_ids": [1, -1]}, "prompt_token_ids.1"),
        ({"prompt": "x", "stop": ["a", ""]}, "stop.1"),
        ({"prompt": "x", "speculation": {"mode": "fast"}}, "speculation.mode"),
        ({"prompt": "x", "speculation": {"length": 65}}, "speculation.length"),
        ({"prompt": "x", "speculation": {"k": 1}}, "speculation.k"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a\0b"}, "prompt"),
        ({"prompt": "a\ud800b"}, "prompt"),
    ],
)
def test_a_mistake_inside_a_field_is_named_by_its_path(data: dict[str, Any], param: str) -> None:
    """`param` is dotted where the mistake is nested."""
    with pytest.raises(RequestError) as caught:
        parse(data)
    assert caught.value.param == param


@pytest.mark.parametrize("data", [{}, {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}])
def test_exactly_one_kind_of_prompt_is_expected(data: dict[str, Any]) -> None:
    """None and two are both refused, with the three names."""
    with pytest.raises(RequestError, match="exactly one of prompt, messages, prompt_token_ids"):
        parse(data)


def test_raw_belongs_to_a_prompt() -> None:
    """Messages cannot be continued raw."""
    with pytest.raises(RequestError, match="raw: got true without a prompt"):
        parse({"messages": [{"role": "user", "content": "x"}], "raw": True})


@pytest.mark.parametrize("name", sorted(NOT_BUILT))
def test_known_parameters_that_are_not_built_are_refused_by_name(name: str) -> None:
    """Nothing is ignored, not even a value that would change nothing."""
    with pytest.raises(RequestError, match=f"{name}: not supported yet") as caught:
        parse({"prompt": "hi", name: 1})
    assert caught.value.param == name


@pytest.mark.parametrize("name", sorted(NOT_OFFERED))
def test_what_is_not_offered_says_what_to_do(name: str) -> None:
    """best_of, beams and adapters: refused for good, with the reason; `null` is leaving it out."""
    with pytest.raises(RequestError, match=f"{name}: not offered: .*(leave it out|choose)") as caught:
        parse({"prompt": "hi", name: 2})
    assert caught.value.param == name
    assert parse({"prompt": "hi", name: None}) == parse({"prompt": "hi"})


def test_parameters_alone_know_no_prompt() -> None:
    """The command line's options go through the same rules."""
    assert parse_params({"top_k": 4}, DEFAULTS).top_k == 4
    with pytest.raises(RequestError, match="unknown field"):
        parse_params({"prompt": "x"}, DEFAULTS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
fields = st.sampled_from([*RequestBody.model_fields, "n", "logprobs", "role", "content"])


@given(st.dictionaries(fields | st.text(), json_values, max_size=5))
def test_no_object_raises_anything_but_a_request_error(data: dict[str, Any]) -> None:
    """Whatever JSON holds is a request or a `RequestError` with a message that can be sent."""
    try:
        parse(data)
    except RequestError as error:
        json.dumps({"message": str(error), "param": error.param}, ensure_ascii=False).encode()


@given(st.sampled_from([10**5000, -(10**5000), b"x", {5: 1}, {"\ud800": 1}, (1,)]), fields)
def test_values_beyond_json_are_refused_too(value: object, field: str) -> None:
    """Numbers of thousands of digits and odd types end in a `RequestError`, or are taken."""
    with suppress(RequestError):
        parse({"prompt": "x", field: value})


def test_an_odd_key_is_refused() -> None:
    """A key with half a surrogate pair is an unknown field."""
    with pytest.raises(RequestError, match="unknown field"):
        parse({"prompt": "x", "\ud800": 1})

"""From a request to a sequence: the prompt, the limits, the ends."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.engine.prepare import Limits, prepare
from ssd_runtime.errors import ContextLengthError, RequestError
from ssd_runtime.sequence import Sequence
from ssd_runtime.testing.toy import ToyTokenizer
from ssd_runtime.types import Message, Request, SamplingParams

TOKENIZER = ToyTokenizer(96)
LIMITS = Limits(context=20, vocab_size=96)


def prepared(request: Request) -> Sequence:
    return prepare(request, TOKENIZER, LIMITS)[0]


def ids(*token_ids: int, **params: Any) -> Request:
    return Request("r", prompt_token_ids=token_ids, params=SamplingParams(**params))


def test_a_prompt_is_one_turn_of_a_conversation() -> None:
    """In the model's chat template, as the same message would be."""
    assert prepared(Request("r", "hi")).token_ids == TOKENIZER.render_chat([Message("user", "hi")])
    assert prepared(Request("r", messages=(Message("user", "hi"),))).token_ids == TOKENIZER.encode("hi|")


def test_a_raw_prompt_is_continued_as_it_stands() -> None:
    """No template."""
    assert prepared(Request("r", "hi", raw=True)).token_ids == TOKENIZER.encode("hi")


@pytest.mark.parametrize(
    "request_",
    [Request("r", ""), Request("r"), ids(), Request("r", "", raw=True)],
    ids=lambda r: repr(r)[:50],
)
def test_an_empty_prompt_is_refused(request_: Request) -> None:
    """Case B54."""
    with pytest.raises(RequestError, match="the prompt is empty"):
        prepared(request_)


@pytest.mark.parametrize("wrong", [-1, 96, 10**12])
def test_ids_outside_the_vocabulary_are_refused_by_value(wrong: int) -> None:
    """With the range that is allowed."""
    with pytest.raises(RequestError, match=f"got {wrong}, expected ids from 0 to 95"):
        prepared(ids(1, wrong))


def test_without_max_tokens_the_context_is_the_limit() -> None:
    """Case B11: what is left of it."""
    assert prepared(ids(1, 2, 3)).num_left == 17


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "named"),
    [(20, None, "at least 1 token"), (21, 1, "max_tokens 1"), (19, 2, "max_tokens 2"), (200, None, "200")],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    prompt: int, max_tokens: int | None, named: str
) -> None:
    """The context, the prompt, and what was wanted."""
    with pytest.raises(ContextLengthError, match="holds 20 tokens") as caught:
        prepared(ids(*[1] * prompt, max_tokens=max_tokens))
    assert named in str(caught.value)
    assert f"prompt of {prompt} tokens" in str(caught.value)


def test_the_ends_are_eos_and_the_requests_own() -> None:
    """`ignore_eos` takes the model's away and leaves the request's."""
    assert prepared(ids(1, stop_token_ids=(7,))).end_ids == {0, 7}
    assert prepared(ids(1, stop_token_ids=(7,), ignore_eos=True)).end_ids == {7}


def test_a_seed_is_kept_and_a_missing_one_is_drawn() -> None:
    """Negative seeds mean the same 64 bits."""
    assert prepared(ids(1, seed=5)).draw.seed == 5
    assert prepared(ids(1, seed=-1)).draw.seed == 2**64 - 1
    assert prepared(ids(1)).draw.seed != prepared(ids(1)).draw.seed


@pytest.mark.parametrize("value", [float("nan"), -0.1, 2.5, "hot"])
def test_parameters_made_by_hand_are_checked_as_those_from_json(value: Any) -> None:
    """The field is named."""
    with pytest.raises(RequestError, match="temperature"):
        prepared(ids(1, temperature=value))


def test_the_callers_token_ids_are_copied() -> None:
    """The answer grows in a list of the engine's own."""
    given = [1, 2, 3]
    sequence = prepared(Request("r", prompt_token_ids=given))  # type: ignore[arg-type]
    sequence.token_ids.append(9)
    assert given == [1, 2, 3]

"""A prediction makes an answer faster where it is right, and changes nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.errors import RequestError
from ssd_runtime.memory.prediction import LONGEST, Prediction
from ssd_runtime.settings.request import parse_request
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, draft_worker
from ssd_runtime.testing.scripted import ScriptedDraft, unusable
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams, SpeculationParams

TARGET = toy_decoder(1)
EACH_MODE = pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])


def asked(prediction: str | None = None, **params: Any) -> Request:
    chosen = {"temperature": 0.9, "max_tokens": 21, "seed": 4, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen), prediction=prediction)


def answer_to(request: Request, mode: Mode = Mode.AUTOREGRESSIVE) -> Answer:
    """With a draft that never has a token, so that every proposal is the prediction's."""
    mute = draft_worker(ScriptedDraft(lambda token_ids: unusable()), 8)
    return asyncio.run(Rig(TARGET, mute, mode=mode, length=4).answers(request))[0]


PLAIN = answer_to(asked())


@EACH_MODE
def test_a_right_prediction_is_accepted_whole(mode: Mode) -> None:
    """Twenty tokens behind the prompt's first in four rounds of K + 1; the text is as without."""
    answer = answer_to(asked(PLAIN.text), mode)
    assert answer.token_ids == PLAIN.token_ids
    assert answer.speculation.rounds == 1 + 4
    assert answer.speculation.accepted_tokens == answer.speculation.draft_tokens == 16


@EACH_MODE
@pytest.mark.parametrize("at", range(0, 20, 3))
def test_an_edit_in_the_middle_costs_a_round_or_two(mode: Mode, at: int) -> None:
    """A letter is another one: behind it the place is found again."""
    edited = f"{PLAIN.text[:at]}~{PLAIN.text[at + 1 :]}"
    answer = answer_to(asked(edited), mode)
    assert answer.token_ids == PLAIN.token_ids
    assert answer.speculation.rounds <= 9


@EACH_MODE
@pytest.mark.parametrize("prediction", ["~~~~", "A", PLAIN.text[::-1], "", PLAIN.text[5:]])
def test_a_wrong_prediction_changes_no_token(mode: Mode, prediction: str) -> None:
    """Whatever it says."""
    assert answer_to(asked(prediction or None), mode).token_ids == PLAIN.token_ids


@EACH_MODE
def test_rules_hold_for_predicted_tokens_too(mode: Mode) -> None:
    """A predicted token that is banned is not emitted."""
    banned = PLAIN.token_ids[3]
    answer = answer_to(asked(PLAIN.text, banned_token_ids=(banned,)), mode)
    assert banned not in answer.token_ids
    assert answer.token_ids == answer_to(asked(banned_token_ids=(banned,))).token_ids


async def test_a_prediction_that_nothing_can_use_is_refused() -> None:
    """Where nothing is drafted, or the request wants no speculation: no silence."""
    async with toy_engine("scheduler.policy=autoregressive") as engine:
        with pytest.raises(RequestError, match=r"^prediction: got one, but nothing is drafted"):
            await engine.complete(asked("A"))
    off = replace(asked("A"), speculation=SpeculationParams(enabled=False))
    async with toy_engine() as engine:
        with pytest.raises(RequestError, match=r"^prediction"):
            await engine.complete(off)
        assert (await engine.complete(asked("A"))).token_ids == (await engine.complete(asked())).token_ids


@pytest.mark.parametrize(
    "content", ["one two", [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]]
)
def test_openais_shapes_are_understood(content: Any) -> None:
    """A text, or its parts."""
    body = {"prompt": "a", "prediction": {"type": "content", "content": content}}
    assert parse_request(body, index=0, defaults=SamplingParams()).prediction == "one two"


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ("one two", "prediction"),
        ({"content": "a"}, "prediction.type"),
        ({"type": "file", "content": "a"}, "prediction.type"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": "a", "x": 1}, "prediction.x"),
    ],
)
def test_another_shape_is_refused(prediction: Any, param: str) -> None:
    """With the place of what is wrong."""
    with pytest.raises(RequestError) as caught:
        parse_request({"prompt": "a", "prediction": prediction}, index=0, defaults=SamplingParams())
    assert caught.value.param is not None
    assert caught.value.param.startswith(param)


token_ids = st.lists(st.integers(0, 3), max_size=30)


@given(token_ids, token_ids, st.integers(0, 6))
def test_a_continuation_is_a_piece_of_the_prediction_behind_the_longest_match(
    predicted: list[int], answer: list[int], k: int
) -> None:
    """Of all places where the last tokens stand, longest match first, the one nearest in length."""
    got = Prediction(predicted).continuation(answer[-LONGEST:], len(answer), k)
    if not answer:
        assert got == tuple(predicted[:k])
        return
    for size in range(min(LONGEST, len(answer)), 0, -1):
        ends = [
            end for end in range(size, len(predicted) + 1) if predicted[end - size : end] == answer[-size:]
        ]
        if ends:
            nearest = min(ends, key=lambda end: (abs(end - len(answer)), -end))
            assert got == tuple(predicted[nearest : nearest + k])
            return
    assert got == ()

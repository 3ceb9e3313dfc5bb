"""Log probabilities are those of the model's p, whoever drafted the token, and of nothing past the end.

Cases B05, B11, B34, B35 and B37 of the public reports.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_runtime.engine.prepare import Limits
from ssd_runtime.messages import ForwardRow
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
PROMPT = (9, 30, 12, 5, 41)
EACH_MODE = pytest.mark.parametrize("mode", [Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD])


def asked(**params: Any) -> Request:
    chosen = {"temperature": 0.0, "max_tokens": 14, "seed": 0, "ignore_eos": True, "logprobs": 2} | params
    return Request("a", prompt_token_ids=PROMPT, params=SamplingParams(**chosen))


def rig(mode: Mode, *, processed: bool = False, draft: str = "self", **settings: Any) -> Rig:
    worker = draft_worker(decoder_draft(TARGET if draft == "self" else OTHER), 8)
    made = Rig(TARGET, None if mode is Mode.AUTOREGRESSIVE else worker, mode=mode, **settings)
    made.limits = Limits(made.limits.context, made.limits.vocab_size, processed)
    return made


def answer_to(request: Request, mode: Mode, **settings: Any) -> Answer:
    return asyncio.run(rig(mode, **settings).answers(request))[0]


def all_logits(token_ids: tuple[int, ...]) -> Tensor:
    """The model's logits after each of the tokens, in one pass of its own."""
    decoder = TARGET.decoder
    kv = decoder.new_kv(64, 4)
    return decoder.forward([ForwardRow(token_ids, 0, tuple(range(64)), len(token_ids))], kv)


@EACH_MODE
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_raw_logprobs_are_the_models_log_softmax(mode: Mode, temperature: float) -> None:
    """Of each emitted token and of the likeliest beside it, best first; none is 0 for want of a value."""
    answer = answer_to(asked(temperature=temperature, top_p=0.5, presence_penalty=1.0), mode)
    assert len(answer.logprobs) == len(answer.token_ids) == 14
    expected = all_logits((*PROMPT, *answer.token_ids)).double().log_softmax(-1)[len(PROMPT) - 1 :]
    for row, token, entry in zip(expected, answer.token_ids, answer.logprobs, strict=False):
        best = row.topk(2)
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-5)
        assert [other.token_id for other in entry.top] == best.indices.tolist()
        assert [other.logprob for other in entry.top] == pytest.approx(best.values.tolist(), abs=1e-5)
    assert any(entry.logprob != 0.0 for entry in answer.logprobs)


@EACH_MODE
def test_processed_logprobs_are_of_what_is_drawn_from(mode: Mode) -> None:
    """After bans, temperature and truncation: the kept tokens' probabilities sum to one."""
    params = {"temperature": 0.7, "top_k": 4, "banned_token_ids": tuple(range(20)), "logprobs": 20}
    answer = answer_to(asked(**params), mode, processed=True)
    logits = all_logits((*PROMPT, *answer.token_ids))[len(PROMPT) - 1 :].double()
    logits[:, :20] = -torch.inf
    for row, entry in zip(logits, answer.logprobs, strict=False):
        best = (row / 0.7).topk(4)
        assert [other.token_id for other in entry.top] == best.indices.tolist()
        expected = best.values.log_softmax(-1).tolist()
        assert [other.logprob for other in entry.top] == pytest.approx(expected, abs=1e-5)
        assert entry.logprob in [other.logprob for other in entry.top]


@EACH_MODE
@pytest.mark.parametrize("stop", ["token", "string", "length"])
def test_there_is_one_entry_for_every_token_and_none_past_the_end(mode: Mode, stop: str) -> None:
    """Case B05: ids, log probabilities and usage have one length, whatever ended the answer."""
    free = answer_to(asked(), Mode.AUTOREGRESSIVE)
    ends: dict[str, dict[str, Any]] = {
        "token": {"stop_token_ids": (free.token_ids[6],)},
        "string": {"stop": (free.text[5:7],)},
        "length": {"max_tokens": 7},
    }
    answer = answer_to(asked(**ends[stop]), mode)
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)
    assert answer.logprobs == free.logprobs[: len(answer.token_ids)]


@EACH_MODE
def test_without_alternatives_only_the_token_is_told(mode: Mode) -> None:
    """`logprobs: 0` gives the emitted token's alone, None gives nothing."""
    assert all(entry.top == () for entry in answer_to(asked(logprobs=0), mode).logprobs)
    assert answer_to(asked(logprobs=None), mode).logprobs == ()


def test_asking_for_logprobs_changes_no_token() -> None:
    """The text is that of a request that does not ask."""
    for temperature in (0.0, 1.0):
        told = answer_to(asked(temperature=temperature, prompt_logprobs=1), Mode.SSD)
        assert told.token_ids == answer_to(asked(temperature=temperature, logprobs=None), Mode.SSD).token_ids


@EACH_MODE
@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
def test_prompt_logprobs_are_the_same_in_any_chunks(mode: Mode, chunk: int) -> None:
    """Case B37: one entry for every prompt token; the first has none, having nothing before it."""
    answer = answer_to(asked(prompt_logprobs=3, max_tokens=3), mode, max_batch_tokens=chunk, max_batch_size=1)
    expected = all_logits(PROMPT).double().log_softmax(-1)
    assert [entry.token_id for entry in answer.prompt_logprobs] == list(PROMPT)
    assert answer.prompt_logprobs[0].logprob is None
    for row, entry in zip(expected, answer.prompt_logprobs[1:], strict=False):
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-5)
        assert [other.token_id for other in entry.top] == row.topk(3).indices.tolist()


def test_a_prompt_that_is_read_again_is_told_once() -> None:
    """Preempted in the middle, in too little memory: each position once, with the same values."""
    made = rig(Mode.SSD, num_blocks=11, max_batch_tokens=4, context=44)
    requests = [
        replace(asked(prompt_logprobs=0, max_tokens=30), id=name, prompt_token_ids=(*PROMPT, i))
        for i, name in enumerate("abc")
    ]
    answers = asyncio.run(made.answers(*requests))
    assert made.core.scheduler.num_preemptions > 0
    for request, answer in zip(requests, answers, strict=True):
        assert answer.prompt_logprobs == answer_to(request, Mode.AUTOREGRESSIVE).prompt_logprobs
        assert len(answer.prompt_logprobs) == len(PROMPT) + 1


@EACH_MODE
@pytest.mark.parametrize("told", [{"prompt_logprobs": 1}, {"echo": True}])
def test_no_tokens_at_all_may_be_asked_for(mode: Mode, told: dict[str, Any]) -> None:
    """Case B11: the prompt is told or repeated, and nothing is generated, counted or cached."""
    made = rig(mode)
    [answer] = asyncio.run(made.answers(asked(max_tokens=0, logprobs=None, **told)))
    assert (answer.token_ids, answer.finish_reason) == ((), FinishReason.LENGTH)
    assert answer.text == (TARGET.tokenizer.decode(PROMPT) if "echo" in told else "")
    assert len(answer.prompt_logprobs) == (len(PROMPT) if "prompt_logprobs" in told else 0)
    assert answer.speculation.draft_tokens == 0
    assert made.blocks.num_free == made.blocks.num_blocks


@EACH_MODE
def test_an_echo_stands_before_the_answer_and_stops_nothing(mode: Mode) -> None:
    """A stop string in the prompt is no stop; the ids are the answer's alone."""
    free = answer_to(asked(), mode)
    echoed = TARGET.tokenizer.decode(PROMPT)
    answer = answer_to(asked(echo=True, stop=(echoed[1:4],)), mode)
    assert answer.text == echoed + free.text
    assert answer.token_ids == free.token_ids


params = st.fixed_dictionaries(
    {"temperature": st.sampled_from((0.0, 0.8)), "max_tokens": st.integers(1, 12)},
    optional={
        "logprobs": st.integers(0, 4),
        "prompt_logprobs": st.integers(0, 2),
        "top_p": st.just(0.8),
        "frequency_penalty": st.just(1.0),
        "banned_token_ids": st.just((3, 4, 5)),
        "stop": st.just(("a", "B")),
    },
)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(params, min_size=1, max_size=3),
    st.sampled_from((Mode.SPECULATIVE, Mode.SSD)),
    st.sampled_from(("self", "other")),
    st.integers(1, 8),
    st.booleans(),
)
def test_logprobs_are_plain_decodings(
    given_params: list[dict[str, Any]], mode: Mode, draft: str, length: int, processed: bool
) -> None:
    """With any draft and length, in a batch where each row asks for something else: to 1e-5."""
    requests = [replace(asked(**({"logprobs": None} | one)), id=str(i)) for i, one in enumerate(given_params)]
    answers = asyncio.run(rig(mode, processed=processed, draft=draft, length=length).answers(*requests))
    for request, answer in zip(requests, answers, strict=True):
        expected = answer_to(request, Mode.AUTOREGRESSIVE, processed=processed)
        assert answer.token_ids == expected.token_ids
        for got, plain in (
            (answer.logprobs, expected.logprobs),
            (answer.prompt_logprobs, expected.prompt_logprobs),
        ):
            assert [entry.token_id for entry in got] == [entry.token_id for entry in plain]
            assert [entry.logprob for entry in got[1:]] == pytest.approx(
                [entry.logprob for entry in plain[1:]], abs=1e-5
            )
            assert [[other.token_id for other in entry.top] for entry in got] == [
                [other.token_id for other in entry.top] for entry in plain
            ]


def test_a_token_that_could_not_be_drawn_has_minus_infinity() -> None:
    """A prompt token under a model that excludes it; JSON shows -9999 (see the faces)."""
    from ssd_runtime.sampling.logprobs import entry, own

    logits = torch.zeros(VOCAB)
    logits[5] = -torch.inf
    told = entry(own(logits), 5, 1)
    assert told.logprob == -math.inf
    assert told.top[0].logprob == pytest.approx(-math.log(VOCAB - 1))

"""Each parameter has its effect, the same in every mode; where transformers has a class for it, that one's.

One engine a mode, which answers all requests of this file at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ssd_kernels.gumbel import gumbel
from ssd_runtime.api import Registry, Warper, hookimpl
from ssd_runtime.errors import RequestError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.settings.request import parse_request
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Request, SamplingParams, SpeculationParams

VOCAB = 96
TARGET = toy_decoder(1, vocab=VOCAB)
PROMPT = "Hi, who"
POLICIES = ("autoregressive", "speculative", "ssd")
EACH_POLICY = pytest.mark.parametrize("policy", POLICIES)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20, "ignore_eos": True, "seed": 5}
SAMPLED = GREEDY | {"temperature": 1.0}


class NoOdd:
    """Bans odd ids."""

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """See `Warper`."""
        logits[1::2] = -torch.inf
        return logits


class Plugin:
    """Provides `no-odd`."""

    @hookimpl
    def ssd_register_warpers(self, registry: Registry[Warper]) -> None:
        """See `hooks/specs.py`."""
        registry.register("no-odd", NoOdd)


def asked(**given: Any) -> Request:
    """The prompt as token ids, so that nothing but `given` is different."""
    data = {"prompt_token_ids": TARGET.tokenizer.encode(PROMPT)} | given
    return parse_request(data, index=0, defaults=SamplingParams())


def greedy_ids() -> list[int]:
    """The plain greedy answer, from one pass of the model after another."""
    return looped(GREEDY, [])


def looped(params: dict[str, Any], processors: Sequence[Any], count: int = 20) -> list[int]:
    """An answer as transformers' `generate` finds it; its draws are ours: argmax of logits + noise."""
    text = TARGET.tokenizer.encode(PROMPT)
    start = len(text)
    for position in range(start, start + count):
        row = ForwardRow(tuple(text), 0, tuple(range(16)), 1)
        logits = TARGET.decoder.forward([row], TARGET.decoder.new_kv(16, 4))
        for processor in processors:
            logits = processor(torch.tensor([text]), logits.clone())
        scores = logits[0]
        if params["temperature"]:
            scores = scores + gumbel(params["seed"], position, torch.arange(VOCAB))
        text.append(int(scores.argmax()))
    return text[start:]


IDS = greedy_ids()
TEXT = TARGET.tokenizer.decode(IDS)
EFFECTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "temperature": (GREEDY, {"temperature": 1.0}),
    "top_p": (SAMPLED, {"top_p": 0.4}),
    "top_k": (SAMPLED, {"top_k": 2}),
    "min_p": (SAMPLED, {"min_p": 0.4}),
    "repetition_penalty": (GREEDY, {"repetition_penalty": 1.8}),
    "presence_penalty": (GREEDY, {"presence_penalty": 2.0}),
    "frequency_penalty": (GREEDY, {"frequency_penalty": 2.0}),
    "logit_bias": (GREEDY, {"logit_bias": {IDS[0]: -100, 40: 2}}),
    "allowed_token_ids": (GREEDY, {"allowed_token_ids": list(range(1, VOCAB, 2))}),
    "banned_token_ids": (GREEDY, {"banned_token_ids": IDS[2:4]}),
    "bad_words": (GREEDY, {"bad_words": [TEXT[1:3]]}),
    "min_tokens": (GREEDY | {"stop_token_ids": IDS[:2]}, {"min_tokens": 9}),
    "max_tokens": (GREEDY, {"max_tokens": 7}),
    "stop": (GREEDY, {"stop": [TEXT[6:8]]}),
    "include_stop_str_in_output": (GREEDY | {"stop": [TEXT[6:8]]}, {"include_stop_str_in_output": True}),
    "stop_token_ids": (GREEDY, {"stop_token_ids": [IDS[4]]}),
    "ignore_eos": (GREEDY | {"logit_bias": {0: 100}, "min_tokens": 9}, {"ignore_eos": False}),
    "seed": (SAMPLED, {"seed": 6}),
    "n": (SAMPLED, {"n": 3}),
    "logprobs": (GREEDY, {"logprobs": 2}),
    "prompt_logprobs": (GREEDY, {"prompt_logprobs": 2}),
    "echo": (GREEDY, {"echo": True}),
    "structured_outputs": (
        GREEDY | {"ignore_eos": False},
        {"structured_outputs": {"regex": "[a-f]{2}-[0-9]{3}"}},
    ),
    "warpers": (SAMPLED, {"warpers": ["no-odd"]}),
}
"""For each parameter what stands beside it, and a value with which the answer is another one."""
ORACLES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "temperature": (SAMPLED | {"temperature": 0.6}, [TemperatureLogitsWarper(0.6)]),
    "top_k": (SAMPLED | {"top_k": 2}, [TopKLogitsWarper(2)]),
    "top_p": (SAMPLED | {"top_p": 0.4}, [TopPLogitsWarper(0.4)]),
    "min_p": (SAMPLED | {"min_p": 0.4}, [MinPLogitsWarper(0.4)]),
    "all of these": (
        SAMPLED | {"temperature": 1.4, "top_k": 9, "top_p": 0.7, "min_p": 0.1},
        [TemperatureLogitsWarper(1.4), TopKLogitsWarper(9), TopPLogitsWarper(0.7), MinPLogitsWarper(0.1)],
    ),
    "repetition_penalty": (GREEDY | {"repetition_penalty": 1.8}, [RepetitionPenaltyLogitsProcessor(1.8)]),
    "logit_bias": (
        GREEDY | EFFECTS["logit_bias"][1],
        [SequenceBiasLogitsProcessor({(IDS[0],): -100.0, (40,): 2.0})],
    ),
    "allowed_token_ids": (
        GREEDY | EFFECTS["allowed_token_ids"][1],
        [PrefixConstrainedLogitsProcessor(lambda batch, text: list(range(1, VOCAB, 2)), num_beams=1)],
    ),
    "banned_token_ids": (GREEDY | EFFECTS["banned_token_ids"][1], [SuppressTokensLogitsProcessor(IDS[2:4])]),
    "bad_words": (
        GREEDY | EFFECTS["bad_words"][1],
        [NoBadWordsLogitsProcessor([TARGET.tokenizer.encode(word) for word in (TEXT[1:3], f" {TEXT[1:3]}")])],
    ),
    "min_tokens": (
        GREEDY | {"stop_token_ids": IDS[:2], "min_tokens": 9},
        [MinNewTokensLengthLogitsProcessor(len(PROMPT), 9, IDS[:2])],
    ),
}
"""What transformers has a class of its own for, with that class."""


@cache
def answers(policy: str) -> dict[str, Answer]:
    """Of one engine, all at once: without each parameter, with it, and what transformers is compared with."""
    wanted = {f"without {name}": asked(**base) for name, (base, _) in EFFECTS.items()}
    wanted |= {f"with {name}": asked(**base | changed) for name, (base, changed) in EFFECTS.items()}
    wanted |= {f"oracle {name}": asked(**params) for name, (params, _) in ORACLES.items()}
    settings = [
        f"scheduler.policy={policy}",
        "engine.draft_model=self",
        "engine.fallback_batch_threshold=100",
    ]
    if policy == "ssd":  # a toy may be verified before anything is prepared for it
        settings.append("engine.fallback=[draft]")

    async def all_at_once() -> list[Answer]:
        models = {"toy/target": TARGET}
        async with toy_engine(*settings, models=models, plugins=[Plugin()]) as engine:
            return list(
                await asyncio.gather(*(engine.complete(replace(one, id=id)) for id, one in wanted.items()))
            )

    return dict(zip(wanted, asyncio.run(all_at_once()), strict=True))


def seen(answer: Answer) -> list[object]:
    """What the client gets, and not how it was computed."""
    return [
        [one.token_ids, one.text, one.finish_reason, len(one.logprobs), len(one.prompt_logprobs)]
        for one in answer.every
    ]


def test_no_parameter_is_forgotten() -> None:
    """Every field of `SamplingParams` is below."""
    assert set(EFFECTS) == {field.name for field in fields(SamplingParams)}


@EACH_POLICY
@pytest.mark.parametrize("name", EFFECTS)
def test_a_parameter_makes_a_difference_and_the_same_one_in_every_mode(name: str, policy: str) -> None:
    """The answer is another one than without it, and plain decoding's."""
    with_it, without = answers(policy)[f"with {name}"], answers(policy)[f"without {name}"]
    assert seen(with_it) != seen(without)
    assert seen(with_it) == seen(answers("autoregressive")[f"with {name}"])
    assert (with_it.speculation.draft_tokens > 0) is (policy != "autoregressive")


@EACH_POLICY
@pytest.mark.parametrize("name", ORACLES)
def test_answers_are_those_of_transformers_classes(name: str, policy: str) -> None:
    """Greedy where the class is a rule; with our noise added where it shapes the distribution."""
    params, processors = ORACLES[name]
    expected = looped(params, processors)
    got = list(answers(policy)[f"oracle {name}"].token_ids)
    assert got == expected[: len(got)]
    assert len(got) == 20 or got[-1] in params["stop_token_ids"]
    assert expected != looped({**params, "temperature": min(params["temperature"], 1.0)}, [])


def test_speculation_itself_changes_nothing_and_can_be_left_out() -> None:
    """Per request: off, one token a round, another mode."""

    async def of_engine() -> list[Answer]:
        models = {"toy/target": TARGET}
        async with toy_engine("scheduler.policy=ssd", "engine.draft_model=self", models=models) as engine:
            requests = [
                asked(**SAMPLED),
                asked(**SAMPLED, speculation={"enabled": False}),
                asked(**SAMPLED, speculation={"length": 1}),
                asked(**SAMPLED, speculation={"mode": "speculative"}),
                asked(**SAMPLED, prediction={"type": "content", "content": TEXT}),
            ]
            return [await engine.complete(request) for request in requests]

    whole, off, short, other, predicted = asyncio.run(of_engine())
    assert whole.token_ids == off.token_ids == short.token_ids == other.token_ids == predicted.token_ids
    assert off.speculation.draft_tokens == 0 < short.speculation.draft_tokens
    assert whole.speculation.rounds < short.speculation.rounds
    assert other.speculation.hits == other.speculation.misses == 0
    assert asked(**SAMPLED).speculation == SpeculationParams()


@pytest.mark.parametrize("name", ["best_of", "beam_width", "use_beam_search", "lora_request"])
def test_what_speculation_cannot_keep_exact_is_refused_by_name(name: str) -> None:
    """Never ignored."""
    with pytest.raises(RequestError, match=f"{name}: not offered"):
        asked(**GREEDY, **{name: 2})

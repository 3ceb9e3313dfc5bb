"""Faults that were reported of other engines, each as a small case on a toy model.

The numbers are those of the list of cases; the other tests name the cases that they hold.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.speculation.fallback import ProposerSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams, SpeculationParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
EACH_MODE = pytest.mark.parametrize("mode", MODES)


def asked(prompt: tuple[int, ...] = (9, 30, 12), **params: Any) -> Request:
    chosen = {"temperature": 0.0, "max_tokens": 20, "seed": 0, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=prompt, params=SamplingParams(**chosen))


def rig(mode: Mode, draft: str = "self", **settings: Any) -> Rig:
    workers: dict[str, Any] = {
        "self": lambda: draft_worker(decoder_draft(TARGET), 8),
        "other": lambda: draft_worker(decoder_draft(OTHER), 8),
        "ngram": lambda: ProposerWorker(NgramProposer(min_match=1), VOCAB),
    }
    return Rig(TARGET, None if mode is Mode.AUTOREGRESSIVE else workers[draft](), mode=mode, **settings)


def answers(requests: list[Request], mode: Mode, draft: str = "self", **settings: Any) -> list[Answer]:
    return asyncio.run(rig(mode, draft, **settings).answers(*requests))


def answer_to(request: Request, mode: Mode, **settings: Any) -> Answer:
    return answers([request], mode, **settings)[0]


@pytest.mark.parametrize("length", [1, 2, 4, 8])
@pytest.mark.parametrize("draft", ["self", "other", "ngram"])
def test_greedy_ids_are_plain_decodings_for_fifty_prompts(draft: str, length: int) -> None:
    """Case B12: every K, every kind of proposer, eight requests at a time."""
    random = Random(length)
    prompts = [tuple(random.randrange(1, VOCAB) for _ in range(random.randrange(1, 8))) for _ in range(50)]
    requests = [replace(asked(prompt, max_tokens=8), id=str(i)) for i, prompt in enumerate(prompts)]
    plain = answers(requests, Mode.AUTOREGRESSIVE, max_batch_size=8)
    drafted = answers(requests, Mode.SSD, draft, length=length, max_batch_size=8, fallback=("draft",))
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]


@EACH_MODE
@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.3, "top_k": 40, "min_p": 0.5},
        {"temperature": 1.3, "top_k": 1},
        {"temperature": 1.3, "top_p": 0.0001},
        {"temperature": 1.3, "min_p": 1.0},
        {"temperature": 1e-6},
    ],
)
def test_what_leaves_one_token_is_greedy(params: dict[str, Any], mode: Mode) -> None:
    """Cases B18 and B31: temperature 0 ignores truncation, and truncation to one token is greedy."""
    assert answer_to(asked(**params), mode).token_ids == answer_to(asked(), Mode.AUTOREGRESSIVE).token_ids


@EACH_MODE
@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6, 1e-3])
def test_temperatures_near_zero_give_finite_numbers(temperature: float, mode: Mode) -> None:
    """Case B19: no division by zero, no negative count."""
    answer = answer_to(asked(temperature=temperature, logprobs=2), mode)
    stats = answer.speculation
    assert all(entry.logprob is not None and math.isfinite(entry.logprob) for entry in answer.logprobs)
    assert min(stats.rounds, stats.hits, stats.misses, stats.draft_tokens, stats.accepted_tokens) >= 0


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_self_draft_is_accepted_whole(mode: Mode, temperature: float) -> None:
    """Case B20: also at a temperature, since the noise is shared."""
    stats = answer_to(asked(temperature=temperature), mode).speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0


@EACH_MODE
def test_a_penalty_breaks_a_loop(mode: Mode) -> None:
    """Case B28: a model that says one thing for ever stops saying it, as in plain decoding."""
    looping: dict[str, Any] = {"logit_bias": ((5, 12.0),)}
    assert set(answer_to(asked(**looping), mode).token_ids) == {5}
    broken = answer_to(asked(**looping, repetition_penalty=10.0), mode)
    assert broken.token_ids.count(5) < 10
    assert (
        broken.token_ids
        == answer_to(asked(**looping, repetition_penalty=10.0), Mode.AUTOREGRESSIVE).token_ids
    )


@pytest.mark.parametrize("value", [-2.0, 2.0])
@EACH_MODE
def test_a_frequency_penalty_makes_a_difference(value: float, mode: Mode) -> None:
    """Case B25: the same difference as in plain decoding."""
    request = asked(temperature=1.0, frequency_penalty=value)
    answer = answer_to(request, mode)
    assert answer.token_ids != answer_to(asked(temperature=1.0), mode).token_ids
    assert answer.token_ids == answer_to(request, Mode.AUTOREGRESSIVE).token_ids


@pytest.mark.parametrize("mode", MODES[1:])
async def test_a_request_without_speculation_gets_drafts_from_nobody(mode: Mode) -> None:
    """Case B63: not from the draft, not from the outcome cache, not from a fallback."""
    guarded = GuardedProposer(NgramProposer(min_match=1), vocab_size=VOCAB, time_limit=1, trusted=True)
    source = ProposerSource("ngram", guarded)
    off = replace(asked((5, 6, 5, 6, 5)), speculation=SpeculationParams(enabled=False))
    on = replace(asked((5, 6, 5, 6, 5)), id="b")
    made = rig(mode, fallback=("shadow", source, "draft"))
    without, with_ = await made.answers(off, on)
    assert without.speculation.draft_tokens == without.speculation.hits == without.speculation.misses == 0
    assert with_.speculation.draft_tokens > 0
    assert without.token_ids == with_.token_ids


@EACH_MODE
def test_a_second_turn_is_what_it_is_from_a_cold_start(mode: Mode) -> None:
    """Case B07: an answer that ended inside an accepted span leaves nothing behind."""
    made = rig(mode)
    first = asyncio.run(made.answers(asked(stop_token_ids=(answer_to(asked(), mode).token_ids[5],))))[0]
    turn = asked((*first.prompt_token_ids, *first.token_ids, 7, 8))
    made.pieces.clear()
    assert asyncio.run(made.answers(turn))[0].token_ids == answer_to(turn, mode).token_ids
    assert made.blocks.num_free == made.blocks.num_blocks

"""Faults of other engines in scheduling, caches and lifecycles: see docs/cases.md for all of them."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ssd_runtime.errors import ContextLengthError
from ssd_runtime.memory.prefix import block_digests
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.toy import ToyTokenizer, toy_config, toy_decoder, toy_weights
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
in_every_mode = pytest.mark.parametrize("mode", MODES)
speculating = pytest.mark.parametrize("mode", MODES[1:])


def ask(name: str = "a", prompt: tuple[int, ...] = (9, 30, 12), **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 16, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=prompt, params=SamplingParams(**chosen))


def rig(mode: Mode, draft: LoadedModel = OTHER, target: LoadedModel = TARGET, **chosen: Any) -> Rig:
    worker = None if mode is Mode.AUTOREGRESSIVE else draft_worker(decoder_draft(draft))
    return Rig(target, worker, mode=mode, fallback=("draft",), **chosen)


def alone(request: Request, target: LoadedModel = TARGET) -> Answer:
    """The request by itself, in plain decoding."""
    return asyncio.run(Rig(target, mode=Mode.AUTOREGRESSIVE).answers(request))[0]


def check(made: Rig, *requests: Request, target: LoadedModel = TARGET) -> None:
    """Each of them answers as if alone."""
    for request, answer in zip(requests, asyncio.run(made.answers(*requests)), strict=True):
        assert answer.token_ids == alone(request, target).token_ids


async def test_an_id_may_be_used_again_whatever_became_of_its_request() -> None:
    """Case B47: while the first runs, after its client has left, after its end."""
    first, second, third = (ask("same", max_tokens=60, seed=seed) for seed in range(3))
    expected = [(await asyncio.to_thread(alone, one)).token_ids for one in (first, second, third)]
    async with toy_engine("scheduler.policy=ssd") as engine:
        together = await asyncio.gather(engine.complete(first), engine.complete(second))
        async with aclosing(engine.generate(ask("same", max_tokens=400))) as pieces:
            await anext(pieces)
        last = await engine.complete(third)
    assert [answer.token_ids for answer in (*together, last)] == expected


async def test_a_prompt_of_ten_times_the_context_is_refused_and_the_next_is_served() -> None:
    """Case B50: with both numbers, before anything is computed."""
    async with toy_engine("scheduler.policy=ssd", "scheduler.max_tokens=32") as engine:
        with pytest.raises(ContextLengthError, match=r"holds 32 tokens.*prompt of 320 tokens"):
            await engine.complete(ask(prompt=(5,) * 320))
        answer = await engine.complete(ask())
    assert answer.token_ids == (await asyncio.to_thread(alone, ask())).token_ids


def sliding(seed: int, window: int = 7) -> LoadedModel:
    """A toy whose second layer sees the last `window` tokens only."""
    config = replace(toy_config(), windows=(None, window))
    decoder = Decoder(config, toy_weights(config, seed), Float32Quantizer())
    return LoadedModel(config, decoder, ToyTokenizer(config.vocab_size), f"sliding-{seed}")


@speculating
@pytest.mark.parametrize("draft", [1, 2])
def test_a_text_goes_on_beyond_a_sliding_window(mode: Mode, draft: int) -> None:
    """Case B53: a window of 7, crossed by the prompt, inside a span, and by the draft's branches."""
    target = sliding(1)
    requests = [ask("a", max_tokens=40), ask("b", tuple(range(1, 12)), max_tokens=40, temperature=0.0)]
    check(rig(mode, sliding(draft), target), *requests, target=target)


@speculating
def test_four_languages_at_once_stay_apart(mode: Mode) -> None:
    """Case B56: four alphabets, which no answer leaves; each is what it is alone."""
    alphabets = [tuple(range(first, first + 15)) for first in (1, 16, 31, 46)]
    requests = [
        ask(f"{i}", letters[:5], allowed_token_ids=letters, max_tokens=24, seed=i)
        for i, letters in enumerate(alphabets)
    ]
    made = rig(mode, TARGET, num_blocks=40)
    check(made, *requests)
    for letters, request in zip(alphabets, requests, strict=True):
        assert set(made.answer(request.id).token_ids) <= set(letters)


async def test_a_draft_whose_vocabulary_is_padded_is_accepted() -> None:
    """Case B57: 128 more rows than the tokenizer has words; none of them is ever proposed."""
    padded = toy_decoder(2, vocab=64 + 128)
    model = replace(padded, tokenizer=ToyTokenizer(64), name="padded")
    engine = toy_engine("scheduler.policy=ssd", "engine.draft_model=toy/padded", models={"toy/padded": model})
    async with engine:
        answer = await engine.complete(ask(max_tokens=40))
    assert answer.token_ids == (await asyncio.to_thread(alone, ask(max_tokens=40))).token_ids
    assert answer.speculation.draft_tokens > 0


@in_every_mode
def test_what_was_answered_before_a_preemption_is_still_answer(mode: Mode) -> None:
    """Case R02: prompt and answer keep their lengths, and `max_tokens` is counted from the prompt's end."""
    requests = [ask(f"{i}", seed=i) for i in range(4)]
    made = rig(mode, num_blocks=10)
    check(made, *requests)
    assert made.core.scheduler.num_preemptions > 0
    for request in requests:
        answer = made.answer(request.id)
        assert answer.prompt_token_ids == request.prompt_token_ids
        assert (len(answer.token_ids), answer.finish_reason) == (16, FinishReason.LENGTH)


@in_every_mode
def test_a_row_at_the_end_of_its_context_preempts_nobody(mode: Mode) -> None:
    """Case R03: memory for two whole contexts, and drafts that would reach beyond them."""
    made = rig(mode, TARGET, length=8, context=32, num_blocks=16, enable_prefix_caching=False)
    check(made, ask("a", max_tokens=29), ask("b", max_tokens=29, seed=4))
    assert made.core.scheduler.num_preemptions == 0


@in_every_mode
def test_a_prompt_longer_than_a_round_is_read_and_holds_up_nobody(mode: Mode) -> None:
    """Case R04: forty tokens, eight a round; who came behind it is done before it has begun to answer."""
    made = rig(mode, max_batch_tokens=8)
    long, short = ask("long", tuple(range(1, 41))), ask("short", (5,), max_tokens=2)
    check(made, long, short)
    heard = [name for lane, _, name in made.journal if lane == "listener"]
    assert heard.index("long") > max(i for i, name in enumerate(heard) if name == "short")


def kv_of(made: Rig, text: tuple[int, ...]) -> Tensor:
    """What is found of a text's KV, by its blocks: `[blocks, …]`."""
    size = made.blocks.block_size
    table = made.blocks.match(block_digests([], text, size, len(text) // size))
    try:
        return torch.stack([made.kv.data[:, block].clone() for block in table])
    finally:
        made.blocks.unpin(table)


@speculating
@pytest.mark.parametrize("draft", [TARGET, OTHER], ids=["accepted", "rejected"])
def test_blocks_that_one_round_completes_are_found_by_their_own_texts(mode: Mode, draft: LoadedModel) -> None:
    """Case R09: blocks of 2, spans of up to 9 with as much look-ahead; each holds what it is known by."""
    made = rig(mode, draft, length=8, block_size=2)
    [answer] = asyncio.run(made.answers(ask(max_tokens=30)))
    text = (*answer.prompt_token_ids, *answer.token_ids)
    reading = Rig(TARGET, mode=Mode.AUTOREGRESSIVE, block_size=2)
    asyncio.run(reading.answers(ask(prompt=text, max_tokens=1)))
    found = kv_of(made, text)
    assert len(found) == (len(text) - 1) // 2
    assert torch.equal(found, kv_of(reading, text)[: len(found)])


async def test_nothing_is_drawn_from_generators_that_others_use() -> None:
    """Case R11: Python's, NumPy's and torch's are where they were, after an engine's start and its rounds."""

    def states() -> list[str]:
        return [repr(random.getstate()), repr(np.random.get_state()), str(torch.get_rng_state().tolist())]

    before = states()
    async with toy_engine("scheduler.policy=ssd", "engine.draft_model=toy/2") as engine:
        await engine.complete(ask(seed=None))
    assert states() == before

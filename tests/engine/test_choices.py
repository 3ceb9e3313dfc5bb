"""Several answers to one request: each its own, together they cost one prompt's worth of words. Case B60."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from ssd_runtime.app import Engine
from ssd_runtime.errors import QueueFullError
from ssd_runtime.settings.request import derive_seed
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Answer, FinishReason, Request, SamplingParams

POLICIES = ("autoregressive", "speculative", "ssd", "hybrid")


def asked(**params: Any) -> Request:
    chosen = {"temperature": 1.0, "max_tokens": 12, "seed": 3, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen))


async def answered(*requests: Request, policy: str = "ssd", settings: tuple[str, ...] = ()) -> list[Answer]:
    async with toy_engine(f"scheduler.policy={policy}", *settings) as engine:
        return list(await asyncio.gather(*map(engine.complete, requests)))


async def idle(engine: Engine) -> None:
    """Return once the engine has nothing to do."""
    for _ in range(1_000_000):
        if not (engine.snapshot().running or engine.snapshot().waiting):
            return
        await asyncio.sleep(0)
    raise AssertionError("the engine is still busy")


@pytest.mark.parametrize("policy", POLICIES)
async def test_each_choice_is_what_its_seed_gives_alone(policy: str) -> None:
    """The first has the request's own seed, the others seeds derived from it; all are told."""
    [answer] = await answered(asked(n=4), policy=policy)
    seeds = [3, *(derive_seed(3, index) for index in (1, 2, 3))]
    assert [choice.seed for choice in answer.choices] == seeds
    alone = await answered(*(asked(seed=seed) for seed in seeds), policy="autoregressive")
    assert [choice.token_ids for choice in answer.choices] == [one.token_ids for one in alone]
    assert len({choice.token_ids for choice in answer.choices}) == 4
    assert answer.token_ids == answer.choices[0].token_ids


async def test_one_answer_has_no_choices() -> None:
    """Nothing changes for who asks for one."""
    [answer] = await answered(asked(n=1))
    assert answer.choices == ()


async def test_rules_are_counted_for_each_choice_by_itself() -> None:
    """Penalties, stops and lengths of one choice know nothing of the others."""
    penalised = asked(n=3, frequency_penalty=2.0, stop=("a", "Q"), logprobs=1)
    [answer] = await answered(penalised)
    for choice in answer.choices:
        alone = replace(penalised, params=replace(penalised.params, n=1, seed=choice.seed))
        [one] = await answered(alone, policy="autoregressive")
        assert (choice.token_ids, choice.text, choice.finish_reason) == (
            one.token_ids,
            one.text,
            one.finish_reason,
        )
        assert [entry.spelling for entry in choice.logprobs] == [entry.spelling for entry in one.logprobs]


async def test_more_choices_than_places_take_turns() -> None:
    """They are requests like any others: batches of two serve seven."""
    [answer] = await answered(asked(n=7), settings=("engine.max_batch_size=2",))
    assert [choice.finish_reason for choice in answer.choices] == [FinishReason.LENGTH] * 7


async def test_choices_that_find_no_place_in_the_queue_fail_the_request_and_leave_nothing() -> None:
    """All or none: the others are cancelled, and the engine serves on."""
    async with toy_engine("engine.max_batch_size=1", "scheduler.max_queue=2") as engine:
        with pytest.raises(QueueFullError):
            await engine.complete(asked(n=6, max_tokens=50))
        assert (await engine.complete(asked())).finish_reason is FinishReason.LENGTH
        await idle(engine)


async def test_leaving_ends_every_choice() -> None:
    """After the first piece nobody listens any more."""
    async with toy_engine() as engine:
        async with aclosing(engine.generate(asked(n=3, max_tokens=200))) as pieces:
            async for _ in pieces:
                break
        await idle(engine)

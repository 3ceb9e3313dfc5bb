"""The low-latency mode: in a crowd lookups instead of the draft, and the target has all cores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.speculation.commands import BuildCommand
from ssd_runtime.speculation.fallback import ProposerSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.mode_control import STEADY_ROUNDS, make_controller
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, RowMode, SamplingParams, SpeculationParams

MODEL = toy_decoder(1)
REPEATED = (5, 6, 7, 8, 5, 6, 7, 8, 5, 6)


def asked(name: str, max_tokens: int = 12, **params: Any) -> Request:
    chosen = {"temperature": 0.7, "max_tokens": max_tokens, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=REPEATED, params=SamplingParams(**chosen))


async def solo(*requests: Request) -> list[tuple[int, ...]]:
    return [(await Rig(MODEL, mode=Mode.AUTOREGRESSIVE).answers(one))[0].token_ids for one in requests]


def crowded(mode: Mode = Mode.SSD, threshold: int = 8) -> Rig:
    """A rig whose draft is the target itself, and whose lookups are n-grams."""
    guarded = GuardedProposer(NgramProposer(), vocab_size=VOCAB, time_limit=1.0, trusted=True, name="ngram")
    return Rig(
        MODEL,
        draft_worker(decoder_draft(MODEL, num_blocks=4096)),
        controller=make_controller(mode, threshold=threshold, max_batch_size=16),
        lookups=[ProposerSource("ngram", guarded)],
        max_batch_size=16,
        max_batch_tokens=512,
        num_blocks=1024,
    )


async def rounds(rig: Rig, count: int) -> set[str]:
    """So many rounds; the modes of their rows."""
    before = len(rig.records)
    for _ in range(count):
        await rig.core.run_round()
        rig.check_blocks()
    return {record.mode for record in rig.records[before:]}


async def test_8_9_and_8_requests() -> None:
    """The ninth starts the mode at once, its end ends it after a while; no text knows of it."""
    rig = crowded()
    eight = [asked(f"{i}", 100, seed=i) for i in range(8)]
    ninth = asked("ninth", 3, seed=9)
    for request in eight:
        rig.submit(request)
    assert await rounds(rig, 3) == {RowMode.SSD}
    builds = len(rig.draft.commands)
    rig.submit(ninth)
    assert await rounds(rig, 3) == {RowMode.LOW_LATENCY}
    assert rig.core.scheduler.num_requests == 8
    assert await rounds(rig, STEADY_ROUNDS - 1) == {RowMode.LOW_LATENCY}
    assert not any(isinstance(each, BuildCommand) for each in rig.draft.commands[builds:])
    assert not any(command.together for command in rig.target.commands[-STEADY_ROUNDS:])
    assert await rounds(rig, 3) == {RowMode.SSD}
    await rig.run()
    texts = [rig.answer(request.id).token_ids for request in (*eight, ninth)]
    assert texts == await solo(*eight, ninth)


async def test_its_proposals_are_one_continuation_a_row_from_lookups() -> None:
    """And are verified like any other."""
    rig = crowded(threshold=0)
    await rig.answers(*(asked(f"{i}", temperature=0) for i in range(3)))
    drafted = [record for record in rig.records if record.proposed]
    assert drafted
    assert {record.source for record in drafted} == {"ngram"}
    assert not any(record.looked_up for record in rig.records)


async def test_a_request_that_says_its_mode_keeps_it() -> None:
    """What was asked for is done, also in a crowd."""
    rig = crowded(threshold=0)
    own = Request(
        "own",
        prompt_token_ids=REPEATED,
        params=asked("own").params,
        speculation=SpeculationParams(mode=Mode.SPECULATIVE),
    )
    off = Request(
        "off",
        prompt_token_ids=REPEATED,
        params=asked("off").params,
        speculation=SpeculationParams(enabled=False),
    )
    await rig.answers(own, off, asked("other"))
    modes = {
        name: {record.mode for record in rig.records if record.request_id == name}
        for name in ("own", "off", "other")
    }
    assert modes == {
        "own": {RowMode.SPECULATIVE},
        "off": {RowMode.AUTOREGRESSIVE},
        "other": {RowMode.LOW_LATENCY},
    }


@pytest.mark.parametrize("policy", ["speculative", "ssd", "hybrid"])
async def test_a_crowd_answers_as_each_alone_and_the_snapshot_says_the_mode(policy: str) -> None:
    """On real threads; the fallbacks without a model, or the default one, are the lookups."""
    requests = [asked(f"{i}", 40, seed=i) for i in range(5)]
    engine = toy_engine(
        f"scheduler.policy={policy}",
        "engine.fallback_batch_threshold=2",
        "engine.draft_model=toy/1",
        "engine.max_batch_size=4",
    )
    async with engine:
        answers = await asyncio.gather(*(engine.complete(request) for request in requests))
        snapshot = engine.snapshot()
    assert [answer.token_ids for answer in answers] == await solo(*requests)
    assert snapshot.rounds_by_mode["low_latency"] > 0


async def test_plain_decoding_knows_no_crowd() -> None:
    """Without a draft there is nothing to fall back from."""
    engine = toy_engine("scheduler.policy=autoregressive", "engine.fallback_batch_threshold=0")
    async with engine:
        answer = await engine.complete(asked("a"))
        assert engine.snapshot().mode == "autoregressive"
        assert set(engine.snapshot().parts) == set()
    assert answer.speculation.draft_tokens == 0

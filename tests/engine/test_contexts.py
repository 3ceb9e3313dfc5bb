"""How far a text may go: the draft's context, and the engine's."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.app import Engine
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig
from ssd_runtime.testing.scripted import ScriptedDraft, continuing
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

PROMPT = (9, 30, 12)


def asked(**params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 24, "seed": 3, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=PROMPT, params=SamplingParams(**chosen))


async def answered(engine: Engine, request: Request) -> Answer:
    async with engine:
        return await engine.complete(request)


async def plain(request: Request) -> tuple[int, ...]:
    return (await Rig(toy_decoder(1), mode=Mode.AUTOREGRESSIVE).answers(request))[0].token_ids


@pytest.mark.parametrize("policy", ["speculative", "ssd"])
async def test_beyond_the_drafts_context_nothing_is_drafted(policy: str) -> None:
    """Case B52: the draft holds 64 tokens, the answer goes on past them; no draft there, not 0 accepted."""
    records = Records()
    whole = (*PROMPT, *await plain(asked(max_tokens=200)))
    draft = ScriptedDraft(continuing([whole]), max_context=64)
    settings = (f"scheduler.policy={policy}", "engine.fallback=[draft]")  # else a slow draft drafts nothing
    engine = toy_engine(*settings, draft=draft, trace=records)
    answer = await answered(engine, asked(max_tokens=200))
    assert answer.token_ids == whole[len(PROMPT) :]
    assert 0 < answer.speculation.draft_tokens <= 64
    place, beyond = len(PROMPT), []
    for record in records.rounds:
        beyond += [record] if place >= 64 else []
        place += record.emitted
    assert len(beyond) > 120
    assert {(record.proposed, record.source) for record in beyond} == {(0, "none")}


class Records:
    """Keeps the rounds."""

    def __init__(self) -> None:
        self.rounds: list[RoundRecord] = []

    def command(self, record: CommandRecord) -> None:
        """Of no interest."""

    def round(self, record: RoundRecord) -> None:
        """One verdict."""
        if record.request_id == "a":
            self.rounds.append(record)

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize("policy", ["autoregressive", "speculative", "ssd", "hybrid"])
async def test_a_context_that_is_reached_exactly_ends_the_answer(policy: str) -> None:
    """With `length`, and with plain's ids to the last, whatever was drafted there."""
    settings = (f"scheduler.policy={policy}", "scheduler.max_tokens=48", "engine.draft_model=toy/1")
    answer = await answered(toy_engine(*settings), asked(max_tokens=None))
    assert answer.finish_reason is FinishReason.LENGTH
    assert answer.token_ids == await plain(asked(max_tokens=48 - len(PROMPT)))

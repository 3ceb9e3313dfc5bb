"""Another speculator between two rounds: no token is another one, and nobody asks the old lane any more."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from ssd_plugins.rejection import RejectionSampler
from ssd_plugins.samplers import CoupledSampler
from ssd_runtime.device.lane import Worker
from ssd_runtime.engine.reload import Changes
from ssd_runtime.engine.target import MOST_JUDGES
from ssd_runtime.errors import EngineClosedError
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker, settle
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, SamplingParams, SpeculationParams

TARGET = toy_decoder(1)
MODES = (Mode.SSD, Mode.SPECULATIVE, Mode.AUTOREGRESSIVE)


class Repeating:
    """A proposer of the last token."""

    def propose(self, token_ids: Any, k: int) -> list[int]:
        return [token_ids[-1]] * k


def workers() -> list[Worker | None]:
    """The target itself as a draft, one without a model, none, another model, the target itself again."""
    myself, other = decoder_draft(TARGET), decoder_draft(toy_decoder(2))
    return [
        draft_worker(myself),
        ProposerWorker(Repeating(), VOCAB),
        None,
        draft_worker(other),
        draft_worker(decoder_draft(TARGET)),
    ]


def asked(number: int, **params: Any) -> Request:
    """Some greedy, some not; each third one has a mode of its own."""
    chosen = {"temperature": (0, 0.9)[number % 2], "max_tokens": 30, "seed": number, "ignore_eos": True}
    mode = SpeculationParams(mode=MODES[number % 3]) if number % 3 else SpeculationParams()
    return Request(
        f"{number}",
        prompt_token_ids=(9, 30, 12 + number),
        params=SamplingParams(**(chosen | params)),
        speculation=mode,
    )


def plain(*requests: Request) -> list[tuple[int, ...]]:
    """What they are answered without a draft."""
    answers = asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE).answers(*requests))
    return [answer.token_ids for answer in answers]


class TestReplacingTheDraft:
    @pytest.mark.parametrize("every", [1, 2, 3])
    async def test_no_text_depends_on_when_drafts_are_replaced(self, every: int) -> None:
        """After every round, or some: running, waiting and half-read requests alike."""
        requests = [asked(number) for number in range(6)]
        expected = await asyncio.to_thread(plain, *requests)
        rig = Rig(TARGET, draft_worker(decoder_draft(TARGET)), max_batch_size=4, max_batch_tokens=8)
        for request in requests:
            rig.submit(request)
        following = workers() * 20
        for number in range(200):
            if rig.core.scheduler.is_idle:
                break
            await rig.core.run_round()
            rig.check_blocks()
            if number % every == 0:
                old = rig.draft
                rig.replace(following[number % len(following)])
                assert old.is_closed or not old.commands, "a lane that is closed takes no command"
        assert rig.core.scheduler.is_idle
        assert [rig.answer(request.id).token_ids for request in requests] == expected

    async def test_what_the_old_draft_prepared_serves_no_more(self) -> None:
        """The first round after the change has no lookup to make; later ones hit again."""
        rig = Rig(TARGET, draft_worker(decoder_draft(TARGET)))
        rig.submit(asked(0))
        while not any(record.source == "cache" for record in rig.records):
            await rig.core.run_round()
        known = len(rig.records)
        rig.replace(draft_worker(decoder_draft(TARGET)))
        await rig.core.run_round()
        assert [record.looked_up for record in rig.records[known:]] == [False]
        await rig.run()
        assert any(record.source == "cache" for record in rig.records[known:])


class TestChanges:
    async def test_they_are_made_between_two_rounds(self) -> None:
        """Not while a pass is in hand, and at once where there is nothing to do."""
        rig = Rig(TARGET, mode=Mode.AUTOREGRESSIVE, automatic=False)
        running = asyncio.ensure_future(rig.core.run())
        made: list[str] = []
        idle, busy = Future[None](), Future[None]()
        rig.core.between_rounds(lambda: made.append("idle"), idle)
        await settle()
        assert (made, idle.done()) == (["idle"], True)
        rig.submit(asked(0, max_tokens=4))
        await settle()
        rig.core.between_rounds(lambda: made.append("busy"), busy)
        await settle()
        assert made == ["idle"]
        rig.target.execute()
        await settle()
        assert (made, busy.done()) == (["idle", "busy"], True)
        rig.target.automatic = True
        rig.target.execute()
        await rig.idle()
        rig.core.close()
        await running

    def test_one_that_raises_is_told_and_the_next_is_made(self) -> None:
        """In their order."""
        changes, made = Changes(), list[int]()
        first, second, third = Future[None](), Future[None](), Future[None]()
        changes.add(lambda: made.append(1), first)
        changes.add(lambda: made.append(1 // 0), second)
        changes.add(lambda: made.append(3), third)
        changes.apply()
        assert made == [1, 3]
        assert (first.result(0), third.result(0)) == (None, None)
        assert isinstance(second.exception(0), ZeroDivisionError)

    def test_one_that_nobody_waits_for_is_not_made(self) -> None:
        """Whoever cancelled has closed what was to be used."""
        changes, made, done = Changes(), list[int](), Future[None]()
        changes.add(lambda: made.append(1), done)
        done.cancel()
        changes.apply()
        assert made == []

    def test_an_engine_that_closes_makes_none(self) -> None:
        """Those that wait and those that come later hear so."""
        changes, made = Changes(), list[int]()
        early, late, cancelled = Future[None](), Future[None](), Future[None]()
        changes.add(lambda: made.append(1), early)
        changes.add(lambda: made.append(1), cancelled)
        cancelled.cancel()
        changes.close()
        changes.add(lambda: made.append(1), late)
        changes.apply()
        assert made == []
        assert isinstance(early.exception(0), EngineClosedError)
        assert isinstance(late.exception(0), EngineClosedError)


class TestSamplers:
    async def test_everybody_keeps_the_sampler_that_they_began_with(self) -> None:
        """In one pass rows of several; the coupled ones' texts are those that they have among themselves."""
        requests = [asked(number, temperature=0.9) for number in range(4)]
        expected = await asyncio.to_thread(plain, *requests)
        rig = Rig(TARGET, draft_worker(decoder_draft(TARGET)))
        for number, request in enumerate(requests):
            sequence = rig.submit(request)
            sequence.sampler = (None, RejectionSampler(), CoupledSampler(), None)[number]
        await rig.run()
        equal = [
            rig.answer(request.id).token_ids == one for request, one in zip(requests, expected, strict=True)
        ]
        assert equal == [True, False, True, True]

    async def test_more_samplers_than_are_kept_ready_serve(self) -> None:
        """Greedy texts are the same under all of them; rules are followed anew."""
        requests = [asked(number, temperature=0, repetition_penalty=1.3) for number in range(MOST_JUDGES + 3)]
        expected = await asyncio.to_thread(plain, *requests)
        rig = Rig(TARGET, draft_worker(decoder_draft(TARGET)), max_batch_size=16)
        for request in requests:
            rig.submit(request).sampler = RejectionSampler()
        await rig.run()
        assert [rig.answer(request.id).token_ids for request in requests] == expected

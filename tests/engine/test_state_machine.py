"""Anything in any order: requests come, leave and are preempted, lanes fail, hang and come back.

A state machine on toy models and scripted lanes. The core runs as in an engine, and stands still where the
target has its next pass to make, so that whatever happens, happens in the middle of a round. After every step
the books of target, draft and host memory are checked, and that exactly those are in the engine who have not
had the last word. In the end each request that nothing befell says what it says alone, and nothing is left.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import lru_cache, partial
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine
from structlog.testing import capture_logs

from ssd_plugins.orders import by_priority
from ssd_runtime.device.supply import MOST_HANGING
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.prepare import prepare_choices
from ssd_runtime.engine.target_lane import PASS_BEATS
from ssd_runtime.errors import ComputeError, QueueFullError
from ssd_runtime.messages import Draw, VerifyCommand, VerifyRow
from ssd_runtime.speculation.drafting import DraftWorker
from ssd_runtime.speculation.model_draft import DecoderDraft
from ssd_runtime.testing.client import Client, alone
from ssd_runtime.testing.moods import Deed, Interrupted, Moody, Restless, answers, fails_a_row, loses, raises
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import (
    ScriptedDraft,
    ScriptedLane,
    avoiding,
    continuing,
    faltering,
    mixing,
)
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams, SpeculationParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
LONGEST = 32
"""Tokens of a prompt and its answer, at most."""
QUEUE = 6
BEGINNINGS = ((), (9, 30, 12, 4), (9, 30, 12, 4, 17, 17, 3, 51), (9, 30, 12, 4, 20, 21, 22, 23))
STOPS = tuple("Ac1kT9q")
SEEN: Counter[str] = Counter()
"""What has happened in all runs so far."""


@lru_cache(maxsize=4096)
def solo(request: Request) -> Answer:
    """The request alone in plain decoding, never preempted."""
    return asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE).answers(request))[0]


ruled = st.fixed_dictionaries(
    {},
    optional={
        "top_p": st.just(0.8),
        "top_k": st.just(5),
        "repetition_penalty": st.just(1.3),
        "presence_penalty": st.just(1.0),
        "frequency_penalty": st.just(-0.5),
        "logit_bias": st.just(((7, 3.0), (8, -100.0))),
        "stop_token_ids": st.just(tuple(range(5, 60, 5))),
        "stop": st.just(STOPS),
        "ignore_eos": st.just(True),
        "logprobs": st.integers(0, 2),
        "prompt_logprobs": st.just(0),
    },
)
params = st.builds(
    lambda rules, **given: SamplingParams(**(given | rules)),
    st.just({}) | ruled | st.just({"stop": STOPS}) | st.just({"max_tokens": 0, "prompt_logprobs": 1}),
    temperature=st.sampled_from((0.0, 0.8, 1.2)),
    max_tokens=st.sampled_from((1, 3, 9, 16, 16)),
    seed=st.integers(0, 3),
    n=st.sampled_from((1, 1, 1, 2)),
)
speculation = st.sampled_from(
    (
        SpeculationParams(),
        SpeculationParams(),
        SpeculationParams(length=2),
        SpeculationParams(enabled=False),
        SpeculationParams(mode=Mode.SPECULATIVE),
        SpeculationParams(mode=Mode.SSD),
    )
)
requests = st.builds(
    lambda beginning, rest, **given: Request(prompt_token_ids=(*beginning, *rest), **given),
    st.sampled_from(BEGINNINGS),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    id=st.sampled_from("abc"),
    params=params,
    speculation=speculation,
    priority=st.sampled_from((0, 0, 1, -1, 2)),
)
chosen = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(("self", "self", "other", "scripted")),
        "crowd": st.sampled_from((2, 4, 4, 9)),
        "troubles": st.sampled_from(((), ("draft",), ("target",), ("draft", "target"))),
        "seed": st.integers(0, 9),
        "mode": st.sampled_from((Mode.SPECULATIVE, Mode.SSD, Mode.SSD, Mode.HYBRID)),
        "fallback": st.sampled_from(((), ("shadow",), ("draft",), ("shadow", "draft"))),
        "length": st.integers(1, 5),
        "block_size": st.sampled_from((2, 4)),
        "spare_blocks": st.integers(0, 4),
        "draft_blocks": st.sampled_from((16, 256, 256)),
        "max_batch_size": st.integers(2, 4),
        "max_batch_tokens": st.sampled_from((5, 9, 64)),
        "swap_tokens": st.sampled_from((None, 16, 1000, 1000)),
        "history_codec": st.sampled_from(("none", "zstd")),
        "enable_prefix_caching": st.booleans(),
    }
)


class Machine(RuleBasedStateMachine):
    """An engine's core, its clients, and what may happen to them."""

    @initialize(given=chosen)
    def start(self, given: dict[str, Any]) -> None:
        """An engine with memory for one request and a little more."""
        self.loop = asyncio.new_event_loop()
        self.complaints: list[Any] = []
        self.loop.set_exception_handler(lambda loop, context: self.complaints.append(context))
        self.clients: list[Client] = []
        self.deeds: dict[str, deque[Deed]] = {"target": deque(), "draft": deque()}
        self.hanging: list[ScriptedLane] = []
        self.texts: list[tuple[int, ...]] = []
        self.num_attempts = 0
        self.given = dict(given)
        self.crowd, self.troubles = self.given.pop("crowd"), self.given.pop("troubles")
        self.kind, self.draft_blocks = self.given.pop("kind"), self.given.pop("draft_blocks")
        self.random = Random(self.given.pop("seed"))
        blocks = -(-LONGEST // given["block_size"]) + self.given.pop("spare_blocks")
        self.rig = Rig(
            TARGET,
            num_blocks=blocks,
            controller=Restless() if given["mode"] is Mode.HYBRID else None,
            start_draft=self.start_draft,
            around=lambda worker: Moody(worker, self.deeds["target"], is_pass),
            automatic=False,
            order=by_priority(),
            max_queue=QUEUE,
            patience=0.0,
            **self.given,
        )
        self.running = self.loop.create_task(self.rig.core.run())
        self.go(self.settled())

    def start_draft(self) -> ScriptedLane:
        """A fresh lane with a worker that has read nothing."""
        if self.kind == "scripted":
            known = continuing(self.texts)
            self.draft: ScriptedDraft | DecoderDraft = ScriptedDraft(
                faltering(mixing(known, avoiding(known), 0.7), 0.2), capacity=8 * self.draft_blocks
            )
        else:
            model = TARGET if self.kind == "self" else OTHER
            self.draft = decoder_draft(model, self.draft_blocks, self.given["block_size"])
        self.drafter: DraftWorker = draft_worker(self.draft)
        interrupted = Interrupted(self.drafter, self.random.randrange(1000))
        moody = Moody(interrupted, self.deeds["draft"], lambda command: hasattr(command, "stop"))
        self.draft_lane = ScriptedLane("draft", worker=moody, automatic=True)
        return self.draft_lane

    @precondition(lambda self: self.rig.core.scheduler.num_requests < self.crowd)
    @rule(request=requests, rounds=st.integers(0, 4))
    def ask(self, request: Request, rounds: int) -> None:
        """Somebody comes, perhaps with an id that is in use, or was; some rounds go by."""
        prepared = prepare_choices(request, TARGET.tokenizer, self.rig.limits)
        choices: list[Client] = []
        for index, (sequence, end) in enumerate(prepared):
            client = Client(request, sequence, choices, solo(alone(request, sequence.draw.seed)))
            self.texts.append((*sequence.token_ids, *client.expected.token_ids))
            is_full = len(self.rig.core.scheduler.waiting) >= QUEUE
            live = LiveRequest(sequence, end, client.hear, "test", 0, self.rig.clock(), index=index)
            self.go(self.do(partial(self.rig.core.submit, live)))
            assert client.has_failed == is_full
            choices.append(client)
        self.clients += choices
        SEEN["asked"] += 1
        self.go(self.settled())
        self.serve(rounds)

    @precondition(lambda self: self.clients and self.rig.core.scheduler.num_requests < self.crowd)
    @rule(data=st.data(), request=requests, rounds=st.integers(0, 4))
    def ask_on(self, data: st.DataObject, request: Request, rounds: int) -> None:
        """A second turn: what somebody asked and was answered, or as much as there is room for."""
        before = data.draw(st.sampled_from(self.clients))
        text = (*before.expected.prompt_token_ids, *before.expected.token_ids)
        self.ask(replace(request, prompt_token_ids=text[: LONGEST - 16]), rounds)

    @rule(rounds=st.integers(1, 9))
    def serve(self, rounds: int) -> None:
        """Some rounds."""
        for _ in range(rounds):
            self.go(self.target_works())

    @rule(rounds=st.integers(10, 30))
    def serve_longer(self, rounds: int) -> None:
        """More rounds."""
        self.serve(rounds)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), preempted=st.booleans())
    def leave(self, data: st.DataObject, preempted: bool) -> None:
        """A client leaves: while its request runs or waits, was preempted, or after its end."""
        waiting = self.rig.core.scheduler.waiting
        sent_away = [one for one in self.clients if one.sequence in waiting and one.sequence.epoch]
        self.cancel(data.draw(st.sampled_from(sent_away if preempted and sent_away else self.clients)))
        self.go(self.settled())

    @precondition(lambda self: "target" in self.troubles and self.num_attempts < 2)
    @rule(data=st.data())
    def target_fails(self, data: st.DataObject) -> None:
        """The pass in hand raises, loses its result, gives rubbish or a bad row, hangs, or its thread dies.

        A request that is there for the first time may be in it, or a probe of a fresh target.
        """
        target, passes = self.rig.target, list(filter(is_pass, self.rig.target.pending))
        if not passes:
            return
        row = data.draw(st.integers(0, passes[0].num_rows - 1))
        bad_row = fails_a_row(row, self.spoil)
        deeds = (raises, loses, answers(None), answers([]), answers("rubbish"), bad_row, bad_row, None, None)
        deed = data.draw(st.sampled_from(deeds if len(self.hanging) < MOST_HANGING - 1 else deeds[:-2]))
        for number, each in enumerate(passes[0].rows):
            if deed is not bad_row or number == row:
                self.befall(each.draw)
        self.num_attempts += passes[0].kind == "probe"
        if deed is None:
            self.hanging.append(target)
            target.is_alive = data.draw(st.booleans())
            self.go(self.beats(PASS_BEATS + passes[0].num_tokens + 1))
        else:
            self.deeds["target"].append(deed)
            self.go(self.target_works())

    @precondition(lambda self: "draft" in self.troubles)
    @rule(deed=st.sampled_from((raises, loses, answers(None), None)), times=st.integers(1, 3))
    def draft_fails(self, deed: Deed | None, times: int) -> None:
        """The draft's next commands raise or lose their results, or do not return, or its thread dies."""
        if deed is not None:
            self.deeds["draft"].extend([deed] * times)
        elif self.draft_lane not in self.hanging:
            self.draft_lane.automatic = False
            self.draft_lane.is_alive = times > 1
            self.hanging.append(self.draft_lane)

    @rule(kind=st.sampled_from(("scripted", "self", "other")))
    def draft_is_replaced(self, kind: str) -> None:
        """Another one serves from the next round on, whatever the old one is at."""

        def replace_draft() -> None:
            self.kind = kind
            self.rig.replace(None)
            SEEN["draft replaced"] += 1

        self.go(self.do(lambda: self.rig.core.between_rounds(replace_draft, Future())))
        self.go(self.settled())

    @precondition(lambda self: self.troubles)
    @rule(seconds=st.sampled_from((0.0, 1.0, 40.0, 70.0)), returns=st.booleans())
    def time_passes(self, seconds: float, returns: bool) -> None:
        """Pauses and patience end; commands that hang are carried out at last, if their thread lives."""
        if returns:
            self.go(self.do(self.release))
        self.rig.clock.advance(seconds)
        self.go(self.beats(1))

    @invariant()
    def books_are_right(self) -> None:
        """Of the target's memory, the draft's, the host's, and of who is here."""
        scheduler = self.rig.core.scheduler
        self.rig.check_blocks()
        self.drafter.check()
        here = [*scheduler.running, *scheduler.waiting]
        for sequence in here:
            sequence.check()
        assert all((one.kv_len, one.table) == (0, []) for one in scheduler.waiting)
        uids = {sequence.uid for sequence in here}
        assert {one.sequence.uid for one in self.clients if not one.is_done} == uids
        speculator, running = self.rig.speculator, {sequence.uid for sequence in scheduler.running}
        assert speculator._memories._of.keys() | speculator._outcomes._generations.keys() <= running
        swap = scheduler.preemption.swap
        if swap is not None:
            assert swap._swapped.keys() <= {one.uid for one in scheduler.waiting}
            assert swap.used == sum(one.nbytes for one in swap._swapped.values()) <= swap.capacity
        assert 0 <= scheduler.prefix_stats.hits <= scheduler.prefix_stats.queries
        assert not self.complaints
        assert not [wrong for one in self.clients for wrong in one.wrong]

    def teardown(self) -> None:
        """Everybody else is served to the end; nothing is left, and nobody is served any more."""
        if not hasattr(self, "loop"):
            return
        try:
            self.end()
        finally:
            self.running.cancel()
            self.loop.run_until_complete(asyncio.gather(self.running, return_exceptions=True))
            self.loop.close()

    def end(self) -> None:
        """Serve whoever is here, look at everything once more, and close."""
        for deeds in self.deeds.values():
            deeds.clear()
        self.go(self.do(self.release))
        while self.rig.target.pending:
            self.go(self.target_works())
            self.books_are_right()
        for one in self.clients:
            one.check_end()
        self.check_that_nothing_is_left()
        self.count()
        self.rig.core.close()
        self.go(asyncio.wait_for(self.running, 1.0))

    def check_that_nothing_is_left(self) -> None:
        """No block, no tokens on the host, nothing in the draft, no task."""
        core = self.rig.core
        assert core.scheduler.blocks.num_free == core.scheduler.blocks.num_blocks
        assert core.scheduler.preemption.num_swapped_now == core.scheduler.preemption.swap_usage == 0
        draft = self.rig.speculator._draft
        if draft is not None and draft.is_serving:  # it may have died unnoticed
            assert not self.drafter._trunks
            assert not getattr(self.draft, "states", None)
        assert asyncio.all_tasks(self.loop) == {self.running}

    def count(self) -> None:
        """Note what happened in this run."""
        preemption, records = self.rig.core.scheduler.preemption, self.rig.records
        SEEN["recomputed"] += preemption.num_recomputed
        SEEN["swapped"] += preemption.num_swapped
        SEEN["found in the prefix cache"] += self.rig.core.scheduler.prefix_stats.hits
        SEEN["target restarted"] += self.rig.core.target.num_restarts
        SEEN["draft restarted"] += self.rig.speculator._draft.num_restarts  # type: ignore[union-attr]
        SEEN["hits"] += sum(one.looked_up and one.proposed > 0 for one in records)
        SEEN["rejected"] += sum(one.accepted < one.proposed for one in records)
        SEEN["failed"] += sum(isinstance(one.pieces[-1], ComputeError) for one in self.clients)
        SEEN["refused"] += sum(isinstance(one.pieces[-1], QueueFullError) for one in self.clients)
        SEEN["whole"] += sum(not one.has_left for one in self.clients)
        SEEN["left"] += sum(one.outputs[-1:] != [] and one.has_left for one in self.clients)

    def cancel(self, one: Client) -> None:
        """The client does not want any of the choices any more, as when it leaves `Engine.generate`."""
        for choice in one.choices:
            choice.has_left = True
            self.rig.core.cancel(choice.sequence)

    def befall(self, draw: Draw) -> None:
        """The row with this draw will fail."""
        for one in self.clients:
            one.befallen |= one.sequence.draw is draw

    def spoil(self, row: VerifyRow) -> None:
        """Whatever is in memory for this row alone is of no use."""
        blocks = self.rig.core.scheduler.blocks
        for block in row.block_table:
            if blocks.num_held_by([[block]]):
                self.rig.kv.data[:, block] = torch.nan

    def release(self) -> None:
        """What hangs goes on, and what is dead stays dead."""
        for lane in self.hanging:
            while lane.is_alive and lane.pending:
                lane.execute()
            lane.automatic = lane is not self.rig.target
            lane.is_alive = lane.is_alive and not lane.is_closed
        self.hanging.clear()

    def go(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run the loop until this is done."""
        self.loop.run_until_complete(coroutine)

    async def do(self, call: Callable[[], None]) -> None:
        """On the loop."""
        call()

    async def beats(self, count: int) -> None:
        """So many seconds pass."""
        for _ in range(count):
            self.rig.core.beat()
        await self.settled()

    async def target_works(self) -> None:
        """The target does what it was asked to."""
        while self.rig.target.pending:
            self.rig.target.execute()
        await self.settled()

    async def settled(self) -> None:
        """Let the core go on until it waits for a pass, or for somebody to come."""
        calm = 0
        for _ in range(10_000):
            await asyncio.sleep(0)
            if self.running.done():
                return self.running.result()
            waits = any(map(is_pass, self.rig.target.pending)) or self.rig.core.scheduler.is_idle
            calm = calm + 1 if waits else 0
            if calm > 5:
                break
        assert calm, "the core waits for nothing that is there"
        if self.rig.core.target.status == "ok":
            self.num_attempts = 0
        for one in self.clients:
            if one.has_failed and not one.has_left:
                self.cancel(one)
        return None


def is_pass(command: Any) -> bool:
    """Whether the command is one of the target's passes."""
    return isinstance(command, VerifyCommand)


EVERYTHING = {
    "asked",
    "whole",
    "left",
    "failed",
    "refused",
    "recomputed",
    "swapped",
    "found in the prefix cache",
    "hits",
    "rejected",
    "target restarted",
    "draft restarted",
    "draft replaced",
}


def check_machine(examples: int, steps: int) -> None:
    with capture_logs():
        run_machine(
            Machine,
            settings=settings(
                max_examples=examples,
                stateful_step_count=steps,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )


def test_whatever_happens_in_whatever_order_nothing_is_lost() -> None:
    """A thousand steps or so."""
    check_machine(30, 40)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_whatever_happens_in_thousands_of_steps_nothing_is_lost() -> None:
    """And everything that can happen has happened."""
    SEEN.clear()
    check_machine(600, 60)
    assert {what for what, count in SEEN.items() if count} >= EVERYTHING

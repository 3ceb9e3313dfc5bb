"""A target that fails takes down the requests of its pass, and nobody else. Every step is the test's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ssd_runtime.engine import target_lane
from ssd_runtime.engine.target_lane import LAST_BEATS, PASS_BEATS, PROBE
from ssd_runtime.errors import ComputeError, EngineClosedError, EngineError
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import Reading, RowFailure, Verdict, VerifyCommand
from ssd_runtime.testing.rig import Rig, settle
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, SamplingParams

MODEL = toy_decoder(1)
PROMPT = (5, 6, 7)


def request(name: str = "a", prompt: tuple[int, ...] = PROMPT, **params: Any) -> Request:
    chosen = {"temperature": 0.7, "max_tokens": 8, "ignore_eos": True, "seed": 1} | params
    return Request(name, prompt_token_ids=prompt, params=SamplingParams(**chosen))


async def solo(*requests: Request) -> list[tuple[int, ...]]:
    return [(await Rig(MODEL, mode=Mode.AUTOREGRESSIVE).answers(one))[0].token_ids for one in requests]


def by_hand(**settings: Any) -> Rig:
    return Rig(MODEL, mode=Mode.AUTOREGRESSIVE, automatic=False, **settings)


class Fails:
    """A worker that raises in its passes of these numbers, counted over all lanes, probes left out."""

    def __init__(self, *numbers: int, error: Exception | None = None, probes: int = 0) -> None:
        self.numbers = numbers
        self.probes = probes
        self._error = error or MemoryError("no memory for a pass")
        self._passes = 0

    def around(self, worker: Any) -> Any:
        """A worker that does what `worker` does, or raises."""
        return Failing(self, worker)

    def check(self, command: Any) -> None:
        """Raise if it is time."""
        if command.kind == "probe":
            self.probes -= 1
            if self.probes >= 0:
                raise self._error
        elif isinstance(command, VerifyCommand):
            self._passes += 1
            if self._passes - 1 in self.numbers:
                raise self._error


class Failing:
    """One lane's worker."""

    def __init__(self, plan: Fails, worker: Any) -> None:
        self._plan = plan
        self._worker = worker

    def execute(self, command: Any) -> Any:
        """See `Worker`."""
        self._plan.check(command)
        return self._worker.execute(command)


async def test_requests_in_flight_fail_and_those_that_wait_answer_as_if_alone() -> None:
    """Two rows are in the pass that fails, two wait; the fresh target knows nothing and needs nothing."""
    requests = [request(name, seed=i) for i, name in enumerate("abcd")]
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, max_batch_size=2, around=Fails(3).around)
    first = rig.target
    for each in requests:
        rig.submit(each)
    await rig.run()
    for name in "ab":
        with pytest.raises(ComputeError, match=r"the target model failed.*no memory for a pass"):
            rig.answer(name)
    assert [rig.answer(name).token_ids for name in "cd"] == await solo(*requests[2:])
    assert rig.target is not first
    assert first.is_closed


async def test_a_request_for_no_tokens_fails_like_any_other() -> None:
    """What it wants to know of its prompt is lost with the pass; that no token is missing is no answer."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, around=Fails(0).around)
    rig.submit(request("a", max_tokens=0, prompt_logprobs=1))
    await rig.run()
    with pytest.raises(ComputeError, match="the target model failed"):
        rig.answer("a")


async def test_who_runs_when_the_memory_is_lost_starts_over() -> None:
    """With the tokens there are; what was prepared for the old epoch is void."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, max_batch_size=2)
    first, second, third = (rig.submit(request(name)) for name in "abc")
    for _ in range(3):
        await rig.core.run_round()
    scheduler = rig.core.scheduler
    scheduler.start_over(BlockManager(256, 4))
    assert scheduler.waiting == [first, second, third]
    assert (first.table, first.kv_len, first.epoch) == ([], 0, 1)
    await rig.core.target.restart(asyncio.Event())
    await rig.run()
    assert [rig.answer(name).token_ids for name in "abc"] == await solo(*map(request, "abc"))


@pytest.mark.parametrize(
    "results",
    [
        None,
        [],
        [None],
        [Reading(1, ())],
        [Verdict(1, 9)],
        [Verdict(-1, 9)],
        [Verdict(0, -2)],
        [Verdict(0, 9), Verdict(0, 9)],
        "rubbish",
    ],
    ids=repr,
)
async def test_a_row_without_a_possible_result_fails_instead_of_running_for_ever(results: Any) -> None:
    """Case B49: a step with an empty result, or with one that no worker in its senses gives."""
    rig = by_hand()
    rig.submit(request())
    round_ = asyncio.create_task(rig.core.run_round())
    await settle()
    rig.target.complete(results)
    await settle()
    assert rig.target.pending == [PROBE]
    rig.target.complete([Verdict(0, 1)])
    await round_
    with pytest.raises(ComputeError, match="the target model failed"):
        rig.answer("a")
    assert rig.core.scheduler.is_idle


async def test_a_fresh_target_serves_when_it_has_made_a_pass_whatever_came_of_it() -> None:
    """Attempts that fail are repeated."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, around=Fails(0, probes=2).around)
    rig.submit(request("a"))
    await rig.core.run_round()
    assert rig.core.target.status == "ok"
    assert rig.core.target.num_restarts == 3
    assert [(await rig.answers(request("b")))[0].token_ids] == await solo(request("b"))
    lane = by_hand()
    lane.submit(request())
    round_ = asyncio.create_task(lane.core.run_round())
    await settle()
    lane.target.fail(RuntimeError("boom"))
    await settle()
    lane.target.complete([RowFailure("not finite")])
    await round_
    assert lane.core.target.status == "ok"


async def test_a_target_that_cannot_be_started_again_ends_the_engine() -> None:
    """After the last attempt everybody hears it, those that wait too."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, max_batch_size=1, around=Fails(1, probes=99).around)
    rig.submit(request("running"))
    rig.submit(request("waiting"))
    with pytest.raises(EngineError, match="after 3 attempts"):
        await rig.core.run()
    assert rig.core.target.status == "failing"
    with pytest.raises(ComputeError):
        rig.answer("running")
    with pytest.raises(EngineError, match="the engine stopped"):
        rig.answer("waiting")


async def test_closing_does_not_wait_for_the_next_attempt() -> None:
    """Whoever waits hears that the engine was closed."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, around=Fails(0).around, target_pauses=(3600.0,))
    running = asyncio.create_task(rig.core.run())
    rig.submit(request("a"))
    await settle()
    rig.submit(request("b"))
    rig.core.close()
    await running
    with pytest.raises(EngineClosedError):
        rig.answer("b")


async def test_a_pass_that_takes_too_long_is_given_up_with_its_lane() -> None:
    """By the beats of the engine's loop, about one a second; the late verdict is thrown away."""
    rig = by_hand()
    running = asyncio.create_task(rig.core.run())
    rig.submit(request())
    await settle()
    hanging = rig.target
    for _ in range(PASS_BEATS + len(PROMPT)):
        rig.core.beat()
    await settle()
    assert rig.target is hanging
    rig.core.beat()
    await settle()
    with pytest.raises(ComputeError, match="takes too long"):
        rig.answer("a")
    assert rig.target is not hanging
    assert hanging.pending
    rig.target.complete([Verdict(0, 1)])
    await settle()
    rig.submit(request("b", max_tokens=1))
    await settle()
    rig.target.complete([Verdict(0, 9)])
    await settle()
    assert rig.answer("b").token_ids == (9,)
    rig.core.close()
    await running


async def test_a_lane_whose_thread_has_died_is_noticed_by_the_next_beat() -> None:
    """It will never answer."""
    rig = by_hand()
    rig.submit(request())
    round_ = asyncio.create_task(rig.core.run_round())
    await settle()
    rig.target.is_alive = False
    rig.core.beat()
    await settle()
    with pytest.raises(ComputeError, match="thread of its lane has died"):
        rig.answer("a")
    rig.target.complete([Verdict(0, 1)])
    await round_


async def test_threads_that_hang_are_not_piled_up() -> None:
    """After a few of them the engine ends."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, automatic=False, target_pauses=(0.0,) * 9)
    running = asyncio.create_task(rig.core.run())
    rig.submit(request())
    lanes = []
    while not running.done():
        await settle()
        lanes.append(rig.target)  # each of them goes on hanging
        for _ in range(PASS_BEATS + 10):
            rig.core.beat()
    with pytest.raises(EngineError, match="still hang"):
        await running
    assert len({id(lane) for lane in lanes}) == 4


async def test_closing_waits_a_little_for_a_pass_and_not_for_ever() -> None:
    """Everybody has had the last word before the thread is left to itself."""
    rig = by_hand()
    running = asyncio.create_task(rig.core.run())
    rig.submit(request())
    await settle()
    rig.core.close()
    for _ in range(LAST_BEATS + 1):
        rig.core.beat()
    await running
    with pytest.raises((ComputeError, EngineClosedError)):
        rig.answer("a")


async def test_closing_gives_a_pass_no_more_time_than_it_had() -> None:
    """One that had a single beat left has a single beat left."""
    rig = by_hand()
    running = asyncio.create_task(rig.core.run())
    rig.submit(request())
    await settle()
    for _ in range(PASS_BEATS + len(PROMPT) - 1):
        rig.core.beat()
    rig.core.close()
    rig.core.beat()
    await settle()
    assert not running.done()
    rig.core.beat()
    await running
    with pytest.raises((ComputeError, EngineClosedError)):
        rig.answer("a")


async def test_no_request_poisons_the_engine_however_often_it_comes() -> None:
    """A pass that fails costs its requests; an engine that computes is never given up."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, around=Fails(*range(20)).around)
    for i in range(20):
        rig.submit(request(f"{i}"))
        await rig.run()
        with pytest.raises(ComputeError):
            rig.answer(f"{i}")
    assert [(await rig.answers(request("good")))[0].token_ids] == await solo(request("good"))


async def test_wrong_books_are_noticed_when_idle_and_begin_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """A block that nobody gave back: the log says so, it is counted, and no memory is lost."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE)
    rig.core.scheduler.blocks.grow([], 1)
    rig.core.check_books()
    assert rig.core.num_violations == 1
    assert "please report this" in "".join(capsys.readouterr())
    blocks = rig.core.scheduler.blocks
    assert blocks.num_free == blocks.num_blocks
    rig.core.check_books()
    assert rig.core.num_violations == 1


async def test_requests_that_wait_for_lost_blocks_are_served() -> None:
    """Nobody runs whom they could wait for: the books must be wrong."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, num_blocks=8)
    rig.core.scheduler.blocks.grow([], 8 * 4)
    rig.submit(request("a"))
    while not rig.core.scheduler.is_idle:
        await rig.core.run_round()
    assert [rig.answer("a").token_ids] == await solo(request("a"))
    assert rig.core.num_violations == 1


def test_the_pauses_before_each_attempt_grow_and_are_bounded() -> None:
    """`/health` is bad in bounded time."""
    assert list(target_lane.PAUSES) == sorted(target_lane.PAUSES)
    assert sum(target_lane.PAUSES) <= 30

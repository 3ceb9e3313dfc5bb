"""Order `priority`: who matters more is served first, and never waits for who matters less."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_plugins.orders import FirstComeFirstServed, by_priority
from ssd_runtime.engine.scheduler import Scheduler
from ssd_runtime.errors import RequestError
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.messages import Draw
from ssd_runtime.sequence import Sequence
from ssd_runtime.server.service import Service
from ssd_runtime.settings.request import parse_request
from ssd_runtime.settings.schema import Settings
from ssd_runtime.testing import asgi
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, RowMode, SamplingParams

MODEL = toy_decoder(1)


def waiting(priority: int = 0, prompt: int = 3, answer: int = 4) -> Sequence:
    return Sequence(
        Request("r", priority=priority), prompt, list(range(prompt)), Draw(0, 0.0), prompt + answer
    )


def scheduler(num_blocks: int = 16, max_batch_size: int = 4, block_size: int = 4) -> Scheduler:
    blocks = BlockManager(num_blocks, block_size)
    return Scheduler(blocks, max_batch_size=max_batch_size, max_batch_tokens=64, order=by_priority())


def served(one: Scheduler, *sequences: Sequence) -> list[Sequence]:
    """One round with new arrivals, in which everybody who samples gets a token; who runs in it."""
    for sequence in sequences:
        one.add(sequence)
    rows = one.next_batch(lambda sequence: (RowMode.AUTOREGRESSIVE, 0))
    one.blocks.check([sequence.table for sequence in (*one.running, *one.waiting)])
    for row in rows:
        row.sequence.commit([1] if row.samples else [], row.sequence.kv_len + row.num_feed)
        if row.sequence.num_left == 0:
            one.remove(row.sequence)
    return [row.sequence for row in rows]


def asked(name: str, priority: int = 0, **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 16, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen), priority=priority)


def test_lower_numbers_go_first_and_equal_ones_by_arrival() -> None:
    """As in vLLM."""
    one = scheduler(max_batch_size=1)
    low, first, second, high = (waiting(priority) for priority in (5, 0, 0, -5))
    order = [served(one, low, first, second, high)[0]]
    while not one.is_idle:
        [sequence] = served(one)
        if sequence is not order[-1]:
            order.append(sequence)
    assert order == [high, first, second, low]


def test_the_least_important_is_preempted_and_among_equals_the_latest() -> None:
    """Wherever it stands among those that run."""
    one = scheduler(num_blocks=6, block_size=2)
    early, late, important = waiting(1, answer=9), waiting(1, answer=9), waiting(0, answer=9)
    served(one, early, late)
    served(one, important)
    served(one)
    assert late in one.waiting
    assert {early, important} == set(one.running)


def test_a_more_important_arrival_takes_the_place_of_a_less_important_one() -> None:
    """Of the batch, or of the memory; the other keeps its tokens and waits."""
    for one in (scheduler(max_batch_size=1), scheduler(num_blocks=2)):
        low, high = waiting(1, prompt=4, answer=4), waiting(0, prompt=4, answer=4)
        served(one, low)
        assert served(one, high) == [high]
        assert one.waiting == [low]
        assert low.num_generated == 1
        assert (low.kv_len, low.table) == (0, [])


def test_nobody_is_preempted_where_that_would_not_be_enough() -> None:
    """The important one waits for the other important one, and the rest goes on meanwhile."""
    one = scheduler(num_blocks=4)
    equal, low, big = waiting(0), waiting(1), waiting(0, prompt=14, answer=2)
    served(one, equal, low)
    served(one, big)
    assert one.waiting == [big]
    assert one.num_preemptions == 0


def test_equal_importance_preempts_nobody() -> None:
    """They take turns by arrival, not by force."""
    one = scheduler(max_batch_size=1)
    first, second = waiting(1), waiting(1)
    served(one, first)
    assert served(one, second) == [first]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 20), st.integers(-2, 2)),
        min_size=1,
        max_size=8,
    ),
    st.integers(1, 5),
    st.integers(0, 8),
    st.integers(1, 4),
)
def test_nobody_starves_once_the_important_ones_are_done(
    requests: list[tuple[int, int, int, int]], block_size: int, spare: int, max_batch_size: int
) -> None:
    """Memory for one request and little more, any priorities, arrivals at any round: no livelock."""
    one = scheduler(-(-18 // block_size) + spare, max_batch_size, block_size)
    arrivals = [(at, waiting(priority, prompt, answer)) for prompt, answer, at, priority in requests]
    bound = 20 + sum(prompt + answer for prompt, answer, _, _ in requests) * (len(requests) + 1)
    for number in range(bound):
        new = [sequence for at, sequence in arrivals if at == number]
        assert served(one, *new) or one.is_idle, "a round without rows does nothing for ever"
    assert one.is_idle
    assert all(sequence.num_left == 0 for _, sequence in arrivals)


async def test_priorities_and_preemptions_change_no_text() -> None:
    """Case B43: memory for two of four; the important one, which came last, is the first to end."""
    requests = [asked(f"{i}", priority=-i, seed=i) for i in range(4)]
    solo = [(await Rig(MODEL, mode=Mode.AUTOREGRESSIVE).answers(one))[0].token_ids for one in requests]
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, num_blocks=10, order=by_priority())
    for request in requests[:2]:
        rig.submit(request)
    for _ in range(4):
        await rig.core.run_round()
    answers = await rig.answers(*requests[2:])
    assert [rig.answer(f"{i}").token_ids for i in range(4)] == solo
    assert len(answers[1].token_ids) == 16
    assert rig.core.scheduler.num_preemptions > 0
    ended = [name for _, _, name in rig.journal if name in "0123"]
    assert ended.index("3") < max(i for i, name in enumerate(ended) if name == "0")
    assert ended[-1] == "0"


async def test_a_priority_that_would_have_no_effect_is_refused() -> None:
    """As vLLM does; 0 is what everybody has."""
    async with toy_engine("scheduler.policy=autoregressive") as engine:
        with pytest.raises(RequestError, match=r"priority: got 3.*scheduler\.order: priority") as refused:
            await engine.complete(asked("a", 3))
        assert refused.value.param == "priority"
        assert len((await engine.complete(asked("b", 0))).token_ids) == 16


async def test_with_order_priority_it_is_taken() -> None:
    """From the settings to the scheduler."""
    async with toy_engine("scheduler.policy=autoregressive", "scheduler.order=priority") as engine:
        assert len((await engine.complete(asked("a", 3))).token_ids) == 16


def test_first_come_first_served_says_that_it_looks_at_no_priority() -> None:
    """Other orders are taken to look at it."""
    assert FirstComeFirstServed.uses_priority is False
    assert getattr(by_priority(), "uses_priority", True)


def parsed(**fields: Any) -> Request:
    return parse_request({"prompt": "a", **fields}, index=0, defaults=SamplingParams())


def test_a_priority_is_an_integer_of_either_sign() -> None:
    """In JSON lines and in HTTP bodies; left out, or null, it is 0."""
    assert [parsed(priority=value).priority for value in (-3, 0, 7, None)] == [-3, 0, 7, 0]
    assert parsed().priority == 0
    for value in ("high", True, 1.5, [1]):
        with pytest.raises(RequestError, match=r"priority: got .*, expected an integer"):
            parsed(priority=value)


@pytest.mark.parametrize(("order", "status"), [("priority", 200), ("fcfs", 400)])
async def test_over_http_it_is_taken_or_refused_likewise(order: str, status: int) -> None:
    """With the name of the field."""
    engine = toy_engine("scheduler.policy=autoregressive", f"scheduler.order={order}")
    async with asgi.served(engine, Service(Settings())) as (app, _):
        exchange = await asgi.post(app, "/v1/completions", {"prompt": "a", "max_tokens": 2, "priority": 2})
    assert exchange.status == status
    if status == 400:
        assert exchange.json()["error"]["param"] == "priority"

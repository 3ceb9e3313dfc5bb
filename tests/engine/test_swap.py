"""Preemption by swap: KV waits in host memory and comes back as it was; no text ever changes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd_plugins.orders import by_priority
from ssd_runtime.errors import ComputeError
from ssd_runtime.memory.history import PackedTokens
from ssd_runtime.memory.swap import SwapInCommand, SwapOutCommand
from ssd_runtime.messages import VerifyCommand
from ssd_runtime.sequence import Sequence
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.moods import Restless
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
FORMATS = (torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8)
PLENTY = 10_000
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD, Mode.HYBRID)


def asked(i: int, prompt: int = 5, answer: int = 16, **fields: Any) -> Request:
    params = SamplingParams(temperature=0.8, max_tokens=answer, seed=i, ignore_eos=True)
    token_ids = tuple((7 * i + 3 * at) % 63 + 1 for at in range(prompt))
    return Request(f"{i}", prompt_token_ids=token_ids, params=params, **fields)


FOUR = tuple(asked(i, priority=(2, 0, 1, 0)[i]) for i in range(4))


def rig(mode: Mode = Mode.SSD, **chosen: Any) -> Rig:
    """A rig with memory for two of four requests; its draft is often right."""
    controller = Restless() if mode is Mode.HYBRID else None
    defaults: dict[str, Any] = {"num_blocks": 11, "swap_tokens": PLENTY, "order": by_priority()}
    draft = draft_worker(decoder_draft(OTHER))
    return Rig(TARGET, draft, mode=mode, controller=controller, **(defaults | chosen))


@lru_cache(maxsize=512)
def solo(request: Request, kv_dtype: torch.dtype = torch.float32) -> tuple[int, ...]:
    """The request alone, never preempted."""
    made = Rig(TARGET, mode=Mode.AUTOREGRESSIVE, kv_dtype=kv_dtype)
    [answer] = asyncio.run(made.answers(request))
    assert made.core.scheduler.num_preemptions == 0
    return answer.token_ids


def texts(made: Rig, *requests: Request) -> list[tuple[int, ...]]:
    """The answers of requests that come together; afterwards nothing is left in host memory."""
    answers = asyncio.run(made.answers(*requests))
    swap = made.core.scheduler.preemption.swap
    assert swap is None or (len(swap), swap.used) == (0, 0)
    return [answer.token_ids for answer in answers]


def num_fed(made: Rig) -> int:
    """Settled tokens that the target read, over all requests."""
    passes = (command for command in made.target.commands if isinstance(command, VerifyCommand))
    return sum(len(row.token_ids) for one in passes for row in one.rows)


@pytest.mark.parametrize(
    ("mode", "kv_dtype"),
    [*((mode, torch.float32) for mode in MODES), *((Mode.SSD, kv_dtype) for kv_dtype in FORMATS[1:])],
)
def test_swapped_recomputed_and_never_preempted_requests_say_the_same(
    mode: Mode, kv_dtype: torch.dtype
) -> None:
    """Case B43: memory for two of four, mixed priorities: every answer is whole and its solo run's."""
    expected = [solo(request, kv_dtype) for request in FOUR]
    swapped, recomputed = rig(mode, kv_dtype=kv_dtype), rig(mode, kv_dtype=kv_dtype, swap_tokens=None)
    assert texts(swapped, *FOUR) == texts(recomputed, *FOUR) == expected
    assert [len(text) for text in expected] == [16] * 4
    preemption = swapped.core.scheduler.preemption
    assert preemption.num_swapped > 0
    assert preemption.num_recomputed == 0
    assert recomputed.core.scheduler.preemption.num_recomputed > 0


@pytest.mark.parametrize("mode", [Mode.AUTOREGRESSIVE, Mode.SSD])
def test_nothing_that_was_swapped_is_computed_again(mode: Mode) -> None:
    """Of each request the target reads every token but the last once, unless it was an accepted draft."""
    made = rig(mode)
    texts(made, *FOUR)
    accepted = sum(record.accepted for record in made.records)
    assert num_fed(made) + accepted == sum(5 + 16 - 1 for _ in FOUR)
    again = rig(mode, swap_tokens=None)
    texts(again, *FOUR)
    assert num_fed(again) > num_fed(made)


def test_kv_comes_back_bit_for_bit() -> None:
    """Whatever was written over it meanwhile, and wherever it lies now."""
    for kv_dtype in FORMATS:
        made = rig(Mode.AUTOREGRESSIVE, kv_dtype=kv_dtype, num_blocks=8)
        before, after = asyncio.run(_there_and_back(made))
        assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))


async def _there_and_back(made: Rig) -> tuple[torch.Tensor, torch.Tensor]:
    """What the KV of a request holds when it is swapped out, and when it is back."""
    sequence = made.submit(asked(0))
    for _ in range(4):
        await made.core.run_round()
    kv_len, place = sequence.kv_len, list(sequence.table)
    before = _kv_of(made, sequence, kv_len)
    scheduler = made.core.scheduler
    scheduler.running.remove(sequence)
    scheduler.preemption.leave(sequence)
    made.blocks.drop(sequence.table)
    assert (sequence.kv_len, sequence.epoch) == (0, 1)
    made.kv.data[:, :-1].fill_(3)
    made.blocks.grow(sequence.table, 4)  # so that it comes to lie elsewhere
    taken = list(sequence.table)
    sequence.table.clear()
    made.blocks.grow(sequence.table, len(sequence.token_ids))
    scheduler.preemption.resume(sequence)
    scheduler.running.append(sequence)
    assert sequence.table != place
    assert sequence.kv_len == kv_len
    made.blocks.unpin(taken)
    return before, _kv_of(made, sequence, kv_len)


def _kv_of(made: Rig, sequence: Sequence, num_tokens: int) -> torch.Tensor:
    """`[layers, tokens, …]`: the sequence's own, in the order of its positions."""
    size = made.kv.block_size
    positions = [
        made.kv.data[:, sequence.table[at // size], :, at % size].clone() for at in range(num_tokens)
    ]
    return torch.stack(positions, 1)


def test_the_least_important_is_swapped_first() -> None:
    """Those of priority 2 and 1 wait; those of priority 0 are never sent away."""
    made = rig(Mode.AUTOREGRESSIVE, num_blocks=13)
    left = _watched(made)
    assert texts(made, *FOUR) == [solo(request) for request in FOUR]
    assert left[0] == "0"
    assert set(left) <= {"0", "2"}


def _watched(made: Rig) -> list[str]:
    """Collects who is preempted, in order."""
    preemption, left = made.core.scheduler.preemption, []
    leave = preemption.leave

    def watch(sequence: Sequence) -> None:
        left.append(sequence.request.id)
        leave(sequence)

    preemption.leave = watch  # type: ignore[method-assign]
    return left


def test_a_prompt_that_was_swapped_in_the_middle_is_told_whole() -> None:
    """Its log probabilities, read in chunks before and after: each position once."""
    params = replace(FOUR[0].params, prompt_logprobs=1)
    request = replace(asked(0, prompt=21, priority=1), params=params)
    made = rig(Mode.SSD, num_blocks=10, max_batch_tokens=9)

    async def play() -> None:
        made.submit(request)
        await made.core.run_round()
        made.submit(asked(1, prompt=21))
        await made.run()

    asyncio.run(play())
    left = [command for command in made.target.commands if isinstance(command, SwapOutCommand)]
    assert left[0].num_tokens == 9
    [alone] = asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE).answers(request))
    answer = made.answer("0")
    assert answer.token_ids == alone.token_ids
    assert answer.prompt_logprobs == alone.prompt_logprobs
    assert len(answer.prompt_logprobs) == 21


def test_what_finds_no_room_on_the_host_is_recomputed() -> None:
    """Room for one of them: some are swapped, some recomputed, and no text changes."""
    made = rig(swap_tokens=12)
    assert texts(made, *FOUR) == [solo(request) for request in FOUR]
    preemption = made.core.scheduler.preemption
    assert min(preemption.num_swapped, preemption.num_recomputed) > 0


def test_without_room_everything_is_recomputed() -> None:
    """`swap_space: 0` is `preempt_mode: recompute`."""
    made = rig(swap_tokens=0)
    assert texts(made, *FOUR) == [solo(request) for request in FOUR]
    assert made.core.scheduler.preemption.num_swapped == 0
    assert not any(isinstance(command, SwapOutCommand) for command in made.target.commands)


async def _until_swapped(made: Rig) -> Sequence:
    """Rounds until somebody's KV is in host memory."""
    sequences = [made.submit(request) for request in FOUR]
    swap = made.core.scheduler.preemption.swap
    assert swap is not None
    while not len(swap):
        await made.core.run_round()
    [swapped] = [one for one in sequences if one in made.core.scheduler.waiting and one.epoch]
    return swapped


def test_a_request_that_is_cancelled_while_swapped_leaves_nothing_behind() -> None:
    """Host memory, blocks and the draft's memory are free; the others go on as if alone."""

    async def play() -> tuple[Rig, Sequence]:
        made = rig()
        swapped = await _until_swapped(made)
        made.core.cancel(swapped)
        running = asyncio.create_task(made.core.run())
        await made.idle()
        made.core.close()
        await running
        return made, swapped

    made, swapped = asyncio.run(play())
    swap = made.core.scheduler.preemption.swap
    assert swap is not None
    assert (len(swap), swap.used) == (0, 0)
    assert made.blocks.num_free == made.blocks.num_blocks
    for request in FOUR:
        if request.id != swapped.request.id:
            assert made.answer(request.id).token_ids == solo(request)
    last = made.answer(swapped.request.id)
    assert last.finish_reason is FinishReason.CANCELLED
    assert last.token_ids == solo(swapped.request)[: len(last.token_ids)]


def test_what_was_prepared_before_a_preemption_never_serves_after_it() -> None:
    """Case B43: the first round of whoever comes back is not even looked up."""
    made = rig(Mode.SSD)
    back: list[str] = []
    preemption = made.core.scheduler.preemption
    resume = preemption.resume

    def watch(sequence: Sequence) -> None:
        resume(sequence)
        if sequence.epoch:
            back.append(sequence.request.id)
            assert sequence.is_decoding, "the bonus alone is pending"

    preemption.resume = watch  # type: ignore[method-assign]
    before: Counter[str] = Counter()

    async def play() -> None:
        for request in FOUR:
            made.submit(request)
        while not made.core.scheduler.is_idle:
            came, seen = len(back), len(made.records)
            await made.core.run_round()
            for record in made.records[seen:]:
                if record.request_id in back[came:]:
                    assert not record.looked_up
                    before[record.request_id] += 1

    asyncio.run(play())
    assert before


def _fails(*arguments: object) -> None:
    raise MemoryError("there is none")


def test_a_copy_that_cannot_be_made_costs_a_recomputation() -> None:
    """Memory for it was promised, and is not there."""
    made = rig()
    made.kv.pages = _fails  # type: ignore[method-assign,assignment]
    assert texts(made, *FOUR) == [solo(request) for request in FOUR]
    assert not any(isinstance(command, SwapInCommand) for command in made.target.commands)


def test_kv_that_does_not_come_back_is_never_read() -> None:
    """Whoever is in that pass is told so; nobody gets a text from KV that is not there."""
    made = rig()
    made.kv.restore = _fails  # type: ignore[method-assign,assignment]
    for request in FOUR:
        made.submit(request)
    asyncio.run(made.run())
    failed = [request for request in FOUR if isinstance(made.pieces[request.id][-1], ComputeError)]
    assert failed
    for request in FOUR:
        if request not in failed:
            assert made.answer(request.id).token_ids == solo(request)
    assert made.blocks.num_free == made.blocks.num_blocks


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(0, 12), st.integers(0, 2)),
        min_size=2,
        max_size=6,
    ),
    st.sampled_from(MODES),
    st.sampled_from((1, 3, 4)),
    st.integers(0, 6),
    st.sampled_from((None, 0, 10, PLENTY)),
    st.sampled_from(("none", "zstd")),
    st.sampled_from((5, 64)),
)
def test_arrivals_lengths_and_memory_change_no_text(
    requests: list[tuple[int, int, int, int]],
    mode: Mode,
    block_size: int,
    spare: int,
    swap_tokens: int | None,
    history_codec: str,
    max_batch_tokens: int,
) -> None:
    """Memory for one request and little more, some of it on the host: each equals its solo run."""
    arrivals = [
        (at, asked(i, prompt, answer, priority=priority))
        for i, (prompt, answer, at, priority) in enumerate(requests)
    ]
    made = rig(
        mode,
        block_size=block_size,
        num_blocks=-(-24 // block_size) + spare,
        swap_tokens=swap_tokens,
        history_codec=history_codec,
        max_batch_tokens=max_batch_tokens,
    )

    async def play() -> None:
        for number in range(13):
            for at, request in arrivals:
                if at == number:
                    made.submit(request)
            if not made.core.scheduler.is_idle:
                await made.core.run_round()
                made.check_blocks()
        await made.run()

    asyncio.run(play())
    for _, request in arrivals:
        assert made.answer(request.id).token_ids == solo(request)
    swap = made.core.scheduler.preemption.swap
    assert swap is None or (len(swap), swap.used) == (0, 0)
    assert made.blocks.num_free == made.blocks.num_blocks


def test_the_history_of_whoever_waits_is_packed_and_of_whoever_runs_is_not() -> None:
    """With `history_codec: zstd`; a packed history reads as ever."""

    async def play() -> tuple[Request, tuple[int, ...]]:
        made = rig(history_codec="zstd")
        swapped = await _until_swapped(made)
        assert isinstance(swapped.token_ids, PackedTokens)
        unpacked = tuple(swapped.token_ids)
        await made.run()
        assert type(swapped.token_ids) is list
        return swapped.request, unpacked

    request, unpacked = asyncio.run(play())
    text = (*(request.prompt_token_ids or ()), *solo(request))
    assert unpacked == text[: len(unpacked)]


@pytest.mark.parametrize("preempt_mode", ["swap", "recompute"])
def test_an_engine_swaps_as_its_settings_say(preempt_mode: str) -> None:
    """And its snapshot tells how often."""
    requests = [replace(request, priority=0) for request in FOUR]

    async def play() -> tuple[list[Answer], EngineSnapshot]:
        little = ("scheduler.policy=ssd", "engine.kv_cache_tokens=48", "engine.block_size=4")
        async with toy_engine(*little, f"scheduler.preempt_mode={preempt_mode}") as engine:
            answers = await asyncio.gather(*(engine.complete(request) for request in requests))
            return answers, engine.snapshot()

    answers, snapshot = asyncio.run(play())
    assert [answer.token_ids for answer in answers] == [solo(request) for request in requests]
    assert snapshot.num_preemptions > 0
    assert snapshot.num_swaps == (snapshot.num_preemptions if preempt_mode == "swap" else 0)
    assert (snapshot.swapped, snapshot.swap_usage) == (0, 0)

"""Whoever begins as somebody did before reads less and says the same: warm equals cold, bit by bit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd_runtime.device.lane import Worker
from ssd_runtime.errors import ComputeError
from ssd_runtime.messages import RowFailure, VerifyCommand
from ssd_runtime.speculation.model_draft import DecoderDraft
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
MODES = (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD)
PROMPT = tuple(range(1, 20))
BLOCK = 4

speculating = pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])
in_every_mode = pytest.mark.parametrize("mode", MODES)


def ask(name: str, prompt: Sequence[int] = PROMPT, **params: Any) -> Request:
    chosen = {"temperature": 0.8, "max_tokens": 14, "seed": 3, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=tuple(prompt), params=SamplingParams(**chosen))


def rig(mode: Mode, draft: DecoderDraft | None = None, **chosen: Any) -> Rig:
    worker = draft_worker(draft or decoder_draft(OTHER), 8) if mode is not Mode.AUTOREGRESSIVE else None
    return Rig(TARGET, worker, mode=mode, block_size=BLOCK, fallback=("draft",), **chosen)


@lru_cache(maxsize=1024)
def cold(request: Request) -> Answer:
    """The request alone, in an engine that knows nothing, without speculation."""
    return asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE, max_batch_tokens=512).answers(request))[0]


def check(answer: Answer, request: Request) -> Answer:
    """It is the cold answer, in every respect."""
    expected = cold(request)
    assert answer.token_ids == expected.token_ids
    assert answer.text == expected.text
    assert answer.finish_reason is expected.finish_reason
    assert answer.logprobs == expected.logprobs
    assert answer.prompt_logprobs == expected.prompt_logprobs
    return answer


def answered(made: Rig, request: Request) -> Answer:
    return check(asyncio.run(made.answers(request))[0], request)


def whole(answer: Answer) -> tuple[int, ...]:
    return (*answer.prompt_token_ids, *answer.token_ids)


@in_every_mode
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_same_prompt_twice_and_then_one_turn_more(mode: Mode, temperature: float) -> None:
    """Case B44: the same ids as cold, and hits: all full blocks but for the last token."""
    made = rig(mode)
    first = answered(made, ask("first", temperature=temperature))
    again = answered(made, ask("again", temperature=temperature))
    turn = ask("turn", (*whole(first), 5, 6, 7), temperature=temperature)
    assert (first.cached_tokens, again.cached_tokens) == (0, 16)
    assert answered(made, turn).cached_tokens == (19 + 14 - 1) // BLOCK * BLOCK
    assert made.core.scheduler.prefix_stats.hits == 16 + 32


@in_every_mode
def test_an_end_token_at_every_offset_of_a_span_leaves_nothing_of_what_follows_it(mode: Mode) -> None:
    """Case B07: the answer ends in mid-span; the next turn is the cold one."""
    full = cold(ask("full", temperature=0.0))
    for at in range(11):
        made = rig(mode, decoder_draft(TARGET))
        ended = answered(made, ask("ended", temperature=0.0, stop_token_ids=(full.token_ids[at],)))
        assert ended.finish_reason is FinishReason.STOP
        answered(made, ask("turn", (*whole(ended), 9, 9), temperature=0.0))
        answered(made, ask("other turn", (*whole(ended), 8, 1, 2, 3), temperature=0.0))


@in_every_mode
@pytest.mark.parametrize("rounds", [1, 2, 3])
def test_a_request_cancelled_in_mid_answer_leaves_what_is_settled_only(mode: Mode, rounds: int) -> None:
    """Case B46: others that begin like it, then and later, are as they are alone."""
    asked = [ask(f"{i}", (*PROMPT, i), seed=i) for i in range(4)]

    async def play() -> Rig:
        made = rig(mode)
        first = [made.submit(request) for request in asked[:3]]
        for _ in range(rounds):
            await made.core.run_round()
            made.check_blocks()
        made.core.cancel(first[1])
        running = asyncio.create_task(made.core.run())
        made.submit(asked[3])
        await made.idle()
        made.core.close()
        await running
        return made

    made = asyncio.run(play())
    for request in (asked[0], asked[2], asked[3]):
        check(made.answer(request.id), request)
    made.core.check_books()
    assert made.core.num_violations == 0


@speculating
def test_a_second_turns_drafts_are_as_good_as_the_firsts(mode: Mode) -> None:
    """The target as its own draft: what the draft remembers is right, so all is accepted, with hits."""
    draft = decoder_draft(TARGET)
    made = rig(mode, draft)
    first = answered(made, ask("first", temperature=0.0))
    second = answered(made, ask("second", (*whole(first), 5), temperature=0.0))
    stats = second.speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0
    assert draft.prefix_stats is not None
    assert draft.prefix_stats.hits >= 16


@in_every_mode
def test_log_probabilities_of_a_known_prompt_are_all_there(mode: Mode) -> None:
    """Case B37, warm: the prompt is read again, since each of its tokens has something to say."""
    made = rig(mode, max_batch_tokens=8)
    answered(made, ask("first"))
    told = answered(made, ask("told", prompt_logprobs=1, logprobs=1))
    assert told.cached_tokens == 0
    assert len(told.prompt_logprobs) == len(PROMPT)


class FirstSampleFails:
    """A target's worker whose first row that should sample gives numbers that are of no use."""

    def __init__(self, worker: Worker) -> None:
        self.starts: list[int] = []
        self._worker = worker
        self._has_failed = False

    def execute(self, command: VerifyCommand) -> Any:
        """One row a command."""
        [row] = command.rows
        self.starts.append(row.start)
        if row.samples and not self._has_failed:
            self._has_failed = True
            return [RowFailure("numbers of no use")]
        return self._worker.execute(command)


def test_what_a_failed_row_has_read_is_found_by_nobody() -> None:
    """Case B58: its KV may be what failed. The next request with this prompt reads all of it."""
    workers: list[FirstSampleFails] = []

    def around(worker: Worker) -> Worker:
        workers.append(FirstSampleFails(worker))
        return workers[0]

    made = rig(Mode.AUTOREGRESSIVE, around=around, max_batch_tokens=8)
    with pytest.raises(ComputeError, match="of no use"):
        asyncio.run(made.answers(ask("failing", max_tokens=1)))
    answered(made, ask("next", max_tokens=1))
    assert workers[0].starts == [0, 8, 16] * 2
    made.check_blocks()


def test_a_target_that_starts_again_knows_no_beginnings() -> None:
    """Its memory is a new one: nothing of the old can be found in it."""
    made = Rig(TARGET, mode=Mode.AUTOREGRESSIVE, block_size=BLOCK)
    answered(made, ask("first"))
    made.core.scheduler.start_over(made.core._new_blocks())
    assert answered(made, ask("again")).cached_tokens == 0


@dataclass(frozen=True)
class Turn:
    """A request that begins with the first `keep` tokens of what request `after` has said, and asks more."""

    after: int
    keep: int
    more: tuple[int, ...]
    params: SamplingParams
    beside: bool


tokens = st.integers(1, VOCAB - 1)
turns = st.builds(
    Turn,
    after=st.integers(0, 5),
    keep=st.integers(0, 40),
    more=st.lists(tokens, min_size=1, max_size=5).map(tuple),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from((0.0, 0.8)),
        seed=st.integers(0, 3),
        max_tokens=st.integers(1, 12),
        ignore_eos=st.booleans(),
        stop_token_ids=st.lists(tokens, max_size=4).map(tuple),
        prompt_logprobs=st.sampled_from((None, None, None, 1)),
    ),
    beside=st.booleans(),
)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(turns, min_size=2, max_size=6),
    st.sampled_from((*MODES, Mode.SSD)),
    st.sampled_from((1, 2, 4, 16)),
    st.integers(0, 20),
    st.sampled_from((4, 7, 64)),
)
def test_any_conversations_in_little_memory_are_as_they_are_alone(
    script: list[Turn], mode: Mode, block_size: int, spare: int, max_batch_tokens: int
) -> None:
    """Turns that continue, repeat or leave what was said before, one after another or together."""
    draft = decoder_draft(OTHER, 512, block_size)
    worker = draft_worker(draft, 4) if mode is not Mode.AUTOREGRESSIVE else None
    made = Rig(
        TARGET,
        worker,
        mode=mode,
        block_size=block_size,
        num_blocks=-(-60 // block_size) + spare,
        max_batch_tokens=max_batch_tokens,
        fallback=("draft",),
        length=3,
    )
    said: list[tuple[int, ...]] = [(1,)]
    group: list[Request] = []
    for number, turn in enumerate(script):
        prompt = (*said[turn.after % len(said)][: min(turn.keep, 40)], *turn.more)
        group.append(replace(ask(f"{number}", prompt), params=turn.params))
        if not turn.beside or number == len(script) - 1:
            for request, answer in zip(group, asyncio.run(made.answers(*group)), strict=True):
                said.append(whole(check(answer, request)))
            group.clear()
            made.core.check_books()
            assert made.core.num_violations == 0
            draft.blocks.check([])


def test_without_the_cache_nothing_is_kept() -> None:
    """`engine.enable_prefix_caching: false`: every block is free when nobody runs."""
    made = rig(Mode.AUTOREGRESSIVE, enable_prefix_caching=False)
    for name in ("first", "again"):
        assert answered(made, ask(name)).cached_tokens == 0
    assert made.blocks.num_cached == 0


@pytest.mark.parametrize("policy", [*MODES, Mode.HYBRID])
async def test_a_whole_engine_says_the_same_in_a_second_turn_and_with_the_cache_off(policy: Mode) -> None:
    """On real lanes, drafts and builds in native calls where there are any: three turns, warm and cold."""
    said: dict[str, list[tuple[int, ...]]] = {}
    for caching in ("true", "false"):
        chosen = [f"scheduler.policy={policy}", "engine.draft_model=toy/1", "engine.block_size=4"]
        async with toy_engine(*chosen, f"engine.enable_prefix_caching={caching}") as engine:
            text, answers = PROMPT, []
            for number in range(3):
                answers.append(await engine.complete(ask(f"{number}", (*text, number + 1))))
                text = whole(answers[-1])
            found = engine.snapshot()
        said[caching] = [answer.token_ids for answer in answers]
        drafted = sum(answer.speculation.draft_tokens for answer in answers)
        assert sum(answer.speculation.accepted_tokens for answer in answers) >= 0.8 * drafted
        cached = [answer.cached_tokens for answer in answers]
        assert cached == ([0, 32, 48] if caching == "true" else [0, 0, 0])
        assert (found.prefix_hits, found.cached_blocks > 0) == (sum(cached), caching == "true")
        assert caching == "true" or found.draft_prefix_queries == 0
        if policy is Mode.SPECULATIVE and caching == "true":  # builds of the other modes may be cut short
            assert found.draft_prefix_hits >= 24 + 40
    assert said["true"] == said["false"]

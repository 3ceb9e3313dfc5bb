"""Whatever drafts, whatever is prepared, whoever runs beside it: the text is plain decoding's.

Toy models on scripted lanes. Builds are cut after any number of passes, as a verdict would.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.device.lane import Worker
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.moods import Interrupted, Restless
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import (
    VOCAB,
    Rule,
    ScriptedDraft,
    avoiding,
    continuing,
    faltering,
    mixing,
)
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams, SpeculationParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
Texts = Sequence[Sequence[int]]
SCRIPTED: dict[str, Callable[[Rule], Rule]] = {
    "oracle": lambda known: known,
    "wrong": avoiding,
    "random lengths": faltering,
    "often wrong": lambda known: mixing(known, avoiding(known)),
    "often wrong, random lengths": lambda known: faltering(mixing(known, avoiding(known), 0.7)),
}
DRAFTS = ("self", "other weights", "ngram", *SCRIPTED)


def worker(kind: str, texts: Texts, budget: int) -> Worker:
    """The draft's worker of this kind; `texts` are the whole right texts."""
    if kind == "ngram":
        return ProposerWorker(NgramProposer(min_match=1), VOCAB)
    if kind in SCRIPTED:
        return draft_worker(ScriptedDraft(SCRIPTED[kind](continuing(texts))), budget)
    return draft_worker(decoder_draft(TARGET if kind == "self" else OTHER), budget)


@lru_cache(maxsize=4096)
def plain(request: Request) -> Answer:
    """The request alone, without speculation, its prompt in one chunk."""
    return asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE, max_batch_tokens=512).answers(request))[0]


def whole_text(request: Request) -> tuple[int, ...]:
    """Prompt and answer, the answer not ended by any stop rule."""
    free = replace(request.params, stop=(), stop_token_ids=(), ignore_eos=True, max_tokens=40)
    answer = plain(Request("whole", prompt_token_ids=request.prompt_token_ids, params=free))
    return (*answer.prompt_token_ids, *answer.token_ids)


def check(rig: Rig, *requests: Request) -> None:
    """Every answer is what plain decoding gives, and its numbers are possible."""
    for request, answer in zip(requests, asyncio.run(rig.answers(*requests)), strict=True):
        expected = plain(request)
        assert answer.token_ids == expected.token_ids
        assert answer.text == expected.text
        assert answer.finish_reason == expected.finish_reason
        assert answer.prompt_logprobs == expected.prompt_logprobs
        assert answer.logprobs == expected.logprobs
        check_numbers(answer)


def check_numbers(answer: Answer) -> None:
    """The statistics' own laws (counted after truncation)."""
    stats = answer.speculation
    positions = stats.accepted_per_position
    assert 0 <= stats.accepted_tokens <= stats.draft_tokens
    assert sum(positions) == stats.accepted_tokens
    assert list(positions) == sorted(positions, reverse=True)
    bonuses = len(answer.token_ids) - stats.accepted_tokens
    assert stats.rounds - 1 <= bonuses <= stats.rounds
    assert stats.hits + stats.misses <= stats.rounds


@dataclass(frozen=True)
class Case:
    """An engine's settings and its requests."""

    kind: str
    mode: Mode
    length: int
    budget: int
    interrupted: bool
    seed: int
    fallback: tuple[str, ...]
    block_size: int
    spare_blocks: int
    max_batch_size: int
    max_batch_tokens: int
    requests: tuple[Request, ...]

    def rig(self) -> Rig:
        """The engine that the case describes; its memory holds one request and a little more."""
        drafts = worker(self.kind, [whole_text(request) for request in self.requests], self.budget)
        return Rig(
            TARGET,
            Interrupted(drafts, self.seed) if self.interrupted else drafts,
            mode=self.mode,
            controller=Restless() if self.mode is Mode.HYBRID else None,
            length=self.length,
            budget=self.budget,
            num_blocks=-(-32 // self.block_size) + self.spare_blocks,
            block_size=self.block_size,
            max_batch_size=self.max_batch_size,
            max_batch_tokens=self.max_batch_tokens,
            fallback=self.fallback,
        )


token_ids = st.integers(0, VOCAB - 1)
rules: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from((0.7, 1.4)),
        "presence_penalty": st.sampled_from((-1.0, 2.0)),
        "frequency_penalty": st.sampled_from((-1.0, 1.0)),
        "logit_bias": st.lists(st.tuples(token_ids, st.sampled_from((-100.0, 4.0))), max_size=3).map(tuple),
        "allowed_token_ids": st.just(tuple(range(0, VOCAB, 2))),
        "banned_token_ids": st.lists(st.integers(1, VOCAB - 1), max_size=4).map(tuple),
        "bad_words": st.lists(st.text("ABC FE", min_size=1, max_size=2), max_size=2).map(tuple),
        "include_stop_str_in_output": st.booleans(),
        "logprobs": st.integers(0, 2),
        "prompt_logprobs": st.integers(0, 1),
        "echo": st.booleans(),
    },
)
"""What may be asked beside temperature, truncation and ends; half of the requests ask for nothing."""


@st.composite
def requests(draw: st.DrawFn, name: str) -> Request:
    """A prompt of 1 to 9 tokens and up to 20 tokens to answer, ended in any way."""
    prompt = draw(st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=9))
    params = SamplingParams(
        temperature=draw(st.sampled_from((0.0, 1e-3, 0.4, 0.7, 1.0, 1.2))),
        top_p=draw(st.sampled_from((1.0, 0.9, 0.3))),
        top_k=draw(st.sampled_from((0, 0, 5))),
        min_p=draw(st.sampled_from((0.0, 0.0, 0.1))),
        seed=draw(st.integers(0, 50)),
        max_tokens=draw(st.integers(1, 20)),
        ignore_eos=draw(st.booleans()),
    )
    params = replace(params, **draw(rules))
    request = Request(name, prompt_token_ids=tuple(prompt), params=params)
    return replace(
        request,
        params=draw(ends(request)),
        speculation=draw(
            st.sampled_from(
                (
                    SpeculationParams(),
                    SpeculationParams(),
                    SpeculationParams(length=2),
                    SpeculationParams(enabled=False),
                    SpeculationParams(mode=Mode.SSD),
                )
            )
        ),
    )


@st.composite
def ends(draw: st.DrawFn, request: Request) -> SamplingParams:
    """The request's parameters with a stop token or a stop string that its answer contains, or none."""
    free = replace(request, params=replace(request.params, max_tokens=20, ignore_eos=True))
    answer = plain(free)
    at = draw(st.integers(0, 19))
    how = draw(st.sampled_from(("no stop", "stop token", "stop string")))
    if how == "stop token":
        return replace(request.params, stop_token_ids=(answer.token_ids[at],))
    if how == "stop string" and answer.text[at : at + 3]:
        return replace(request.params, stop=(answer.text[at : at + 3], "never this"))
    return request.params


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Anything that may be configured and asked."""
    return Case(
        kind=draw(st.sampled_from(DRAFTS)),
        mode=draw(st.sampled_from((Mode.SPECULATIVE, Mode.SSD, Mode.SSD, Mode.HYBRID))),
        length=draw(st.integers(1, 8)),
        budget=draw(st.integers(0, 8)),
        interrupted=draw(st.booleans()),
        seed=draw(st.integers(0, 100)),
        fallback=draw(st.sampled_from(((), ("shadow",), ("draft",), ("shadow", "draft")))),
        block_size=draw(st.sampled_from((1, 2, 4, 5, 16))),
        spare_blocks=draw(st.integers(0, 24)),
        max_batch_size=draw(st.integers(1, 4)),
        max_batch_tokens=draw(st.sampled_from((4, 7, 64))),
        requests=tuple(draw(requests(f"{i}")) for i in range(draw(st.integers(1, 4)))),
    )


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_mode_and_draft_gives_plain_decodings_text(case: Case) -> None:
    """Together, in little memory, with their own parameters: as each alone without speculation."""
    check(case.rig(), *case.requests)


@pytest.mark.slow
@pytest.mark.timeout(900)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_every_mode_and_draft_gives_plain_decodings_text_in_many_cases(case: Case) -> None:
    """The same, for longer."""
    check(case.rig(), *case.requests)


def greedy(**params: Any) -> Request:
    chosen = {"temperature": 0, "max_tokens": 24, "seed": 0, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen))


@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])
@pytest.mark.parametrize("length", [1, 4, 8])
def test_hits_forced_on_accept_everything(mode: Mode, length: int) -> None:
    """The target as its own draft, never interrupted: every draft is accepted, every look-up hits."""
    rig = Rig(TARGET, worker("self", [], 8), mode=mode, length=length)
    check(rig, greedy())
    stats = rig.answer("a").speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0
    assert stats.rounds == 1 + -(-23 // (length + 1))
    if mode is Mode.SSD:
        assert stats.misses == 0
        assert stats.hits == sum(record.proposed > 0 for record in rig.records) >= stats.rounds - 2


def test_hits_forced_off_propose_nothing() -> None:
    """A draft that never has a token ready: as many rounds as tokens, and no rate."""
    rig = Rig(TARGET, worker("wrong", [whole_text(greedy())], 8))
    check(rig, greedy())
    stats = rig.answer("a").speculation
    assert (stats.hits, stats.draft_tokens, stats.rounds) == (0, 0, 24)


@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])
def test_an_end_token_at_every_offset_of_an_accepted_span_ends_the_answer(mode: Mode) -> None:
    """Case B01: nothing after the first stop token is emitted, streamed or counted."""
    answer = plain(greedy())
    for at in range(11):
        stopping = greedy(stop_token_ids=(answer.token_ids[at],))
        rig = Rig(TARGET, worker("self", [], 8), mode=mode, length=4)
        check(rig, stopping)
        cut = answer.token_ids[: answer.token_ids.index(answer.token_ids[at]) + 1]
        assert rig.answer("a").token_ids == cut
        assert rig.answer("a").finish_reason is FinishReason.STOP
        assert sum(record.emitted for record in rig.records) == len(cut)


@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_stop_string_at_every_offset_of_an_accepted_span_cuts_the_text(mode: Mode, width: int) -> None:
    """Case B04: also early in a long accepted span; the ids reach to the token that completed it."""
    answer = plain(greedy())
    for at in range(11):
        stop = answer.text[at : at + width]
        rig = Rig(TARGET, worker("self", [], 8), mode=mode, length=8)
        check(rig, greedy(stop=(stop,)))
        found = answer.text.index(stop)
        assert rig.answer("a").text == answer.text[:found]
        assert rig.answer("a").token_ids == answer.token_ids[: found + width]


@pytest.mark.parametrize("mode", [Mode.SPECULATIVE, Mode.SSD])
@pytest.mark.parametrize("max_tokens", range(1, 11))
def test_never_more_than_max_tokens(mode: Mode, max_tokens: int) -> None:
    """Case B08: for 1 to 2K + 2 tokens, K = 4."""
    rig = Rig(TARGET, worker("self", [], 8), mode=mode, length=4)
    check(rig, greedy(max_tokens=max_tokens))
    assert len(rig.answer("a").token_ids) == max_tokens
    assert rig.answer("a").finish_reason is FinishReason.LENGTH


def test_a_request_is_the_same_alone_in_a_batch_and_after_others() -> None:
    """Case B21: a seed means the same text wherever it runs."""
    asked = greedy(temperature=1.0, seed=7, max_tokens=12)
    others = [
        replace(greedy(temperature=1.0, seed=seed, max_tokens=12), id=f"{seed}", prompt_token_ids=(seed + 1,))
        for seed in range(3)
    ]
    rig = Rig(TARGET, worker("other weights", [], 8), max_batch_size=8, fallback=("draft",))
    check(rig, *others, asked)
    rig.pieces.clear()
    check(rig, asked)


def test_cancelled_neighbours_change_nothing() -> None:
    """Case B46: one of four leaves in mid-answer and a fifth takes its blocks."""
    asked = [replace(greedy(seed=i, temperature=0.8), id=f"{i}") for i in range(5)]

    async def play() -> Rig:
        rig = Rig(TARGET, worker("self", [], 8), num_blocks=32, fallback=("shadow",))
        first = [rig.submit(request) for request in asked[:4]]
        await rig.core.run_round()
        await rig.core.run_round()
        rig.submit(asked[4])
        rig.core.cancel(first[1])
        running = asyncio.create_task(rig.core.run())
        await rig.idle()
        rig.core.close()
        await running
        return rig

    rig = asyncio.run(play())
    for i in (0, 2, 3, 4):
        assert rig.answer(f"{i}").token_ids == plain(asked[i]).token_ids
    assert rig.answer("1").finish_reason is FinishReason.CANCELLED
    assert rig.blocks.num_free == 32

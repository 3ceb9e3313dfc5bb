"""Every rule about tokens has its effect, on every token, whoever drafts: plain, speculative and ssd agree.

Cases B10, B25, B26, B28, B30 to B33 of the public reports. The target is its own draft wherever nothing
else is said: it accepts nearly everything, so that whole spans are ruled at once.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from ssd_plugins.ngram import NgramProposer
from ssd_runtime.errors import RequestError
from ssd_runtime.messages import ForwardRow
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, FinishReason, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
MODES = (Mode.SPECULATIVE, Mode.SSD)
EACH_MODE = pytest.mark.parametrize("mode", MODES)


def asked(**params: Any) -> Request:
    chosen = {"temperature": 0.0, "max_tokens": 20, "seed": 0, "ignore_eos": True} | params
    return Request("a", prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen))


@lru_cache(maxsize=4096)
def plain(request: Request) -> Answer:
    """The request alone, without speculation."""
    return asyncio.run(Rig(TARGET, mode=Mode.AUTOREGRESSIVE).answers(request))[0]


def speculative(request: Request, mode: Mode, draft: str = "self", length: int = 4) -> Answer:
    """The request with speculation; a draft that agrees, one that does not, or n-grams."""
    worker: Any = draft_worker(decoder_draft(TARGET if draft == "self" else OTHER), 8)
    if draft == "ngram":
        worker = ProposerWorker(NgramProposer(min_match=1), VOCAB)
    return asyncio.run(Rig(TARGET, worker, mode=mode, length=length, fallback=("draft",)).answers(request))[0]


def same(request: Request, mode: Mode, draft: str = "self", length: int = 4) -> Answer:
    """The plain answer, after speculation was seen to give it too."""
    expected, got = plain(request), speculative(request, mode, draft, length)
    assert got.token_ids == expected.token_ids
    assert (got.text, got.finish_reason) == (expected.text, expected.finish_reason)
    return expected


DEFAULT = plain(asked()).token_ids
RULES: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "presence_penalty": {"presence_penalty": 2.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "frequency_penalty below 0": {"frequency_penalty": -2.0, "temperature": 1.0},
    "logit_bias": {"logit_bias": ((DEFAULT[0], -100.0), (40, 2.0))},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(1, VOCAB, 2))},
    "banned_token_ids": {"banned_token_ids": DEFAULT[2:4]},
    "bad_words": {"bad_words": (plain(asked()).text[1:3],)},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": (DEFAULT[0], DEFAULT[1])},
}


@EACH_MODE
@pytest.mark.parametrize("name", RULES)
def test_a_rule_changes_the_answer_and_speculation_changes_nothing(name: str, mode: Mode) -> None:
    """Against the answer without the rule; with a draft that agrees and one that does not."""
    without = {key: value for key, value in RULES[name].items() if key in ("temperature", "stop_token_ids")}
    ruled = same(asked(**RULES[name]), mode)
    assert ruled.token_ids != plain(asked(**without)).token_ids
    same(asked(**RULES[name]), mode, "other")
    same(asked(**RULES[name]), mode, "ngram")


@EACH_MODE
@pytest.mark.parametrize("name", RULES)
def test_the_draft_obeys_the_rules_too(name: str, mode: Mode) -> None:
    """The target as its own draft, ruled alike, is accepted whole; without the rules it is not."""
    stats = speculative(asked(**RULES[name]), mode).speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0


@EACH_MODE
@pytest.mark.parametrize("at", range(20))
def test_a_token_that_is_biased_away_appears_nowhere(at: int, mode: Mode) -> None:
    """Case B30: also at positions 1 to 20, inside accepted spans."""
    banned = DEFAULT[at]
    answer = same(asked(logit_bias=((banned, -100.0),)), mode)
    assert banned not in answer.token_ids


@EACH_MODE
@pytest.mark.parametrize("length", [1, 4, 8])
def test_nothing_ends_an_answer_before_min_tokens(length: int, mode: Mode) -> None:
    """Case B10: a model that would end at once goes on; its end may come after ten tokens, not before."""
    eager = asked(min_tokens=10, ignore_eos=False, logit_bias=((0, 100.0),))
    answer = same(eager, mode, length=length)
    assert 0 not in answer.token_ids[:10]
    assert answer.token_ids[10:] == (0,)
    assert answer.finish_reason is FinishReason.STOP


@EACH_MODE
def test_a_stop_string_inside_min_tokens_is_text_like_any_other(mode: Mode) -> None:
    """It ends the answer only where all of it comes later."""
    text = plain(asked()).text
    answer = same(asked(stop=(text[2:4],), min_tokens=6), mode)
    assert answer.text[: len(text[:6])] == text[:6]


@EACH_MODE
def test_a_penalty_counts_every_accepted_token(mode: Mode) -> None:
    """Case B26: with a presence penalty that nothing beats, no token comes twice within one span."""
    answer = same(asked(presence_penalty=2.0, logit_bias=tuple((i, 0.0) for i in range(3))), mode, length=8)
    heavy = same(asked(repetition_penalty=10.0, frequency_penalty=2.0), mode, length=8)
    assert len(set(heavy.token_ids)) >= len(set(answer.token_ids)) > len(set(DEFAULT))


@EACH_MODE
def test_odd_tokens_that_are_not_allowed_are_never_emitted(mode: Mode) -> None:
    """Case B33, at a temperature that would find them."""
    answer = same(asked(allowed_token_ids=tuple(range(0, VOCAB, 2)), temperature=1.2), mode, length=8)
    assert all(token % 2 == 0 for token in answer.token_ids)


@EACH_MODE
def test_a_bad_word_is_avoided_also_across_the_border_of_a_round(mode: Mode) -> None:
    """Its first tokens are accepted in one round, its last one would be in the next."""
    text = plain(asked()).text
    for at in range(10):
        word = text[at : at + 3]
        assert word not in same(asked(bad_words=(word,)), mode, length=2).text


@EACH_MODE
def test_parameters_that_leave_no_token_fail_their_own_request(mode: Mode) -> None:
    """With a message about the request, while the others go on."""
    rig = Rig(TARGET, draft_worker(decoder_draft(TARGET), 8), mode=mode)
    impossible = replace(asked(allowed_token_ids=(7,), banned_token_ids=(7,)), id="b")
    rig.submit(impossible)
    rig.submit(asked())
    asyncio.run(rig.run())
    assert rig.answer("a").token_ids == DEFAULT
    with pytest.raises(RequestError, match="leave no token possible at position 3"):
        rig.answer("b")


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"logit_bias": ((VOCAB, 1.0),)}, f"logit_bias: got {VOCAB}, expected ids from 0 to {VOCAB - 1}"),
        ({"allowed_token_ids": (1, VOCAB)}, f"allowed_token_ids: got {VOCAB}"),
        ({"banned_token_ids": (10**9,)}, "banned_token_ids: got 1000000000"),
        ({"min_tokens": 21}, "min_tokens: got 21, expected at most 20"),
        ({"min_tokens": 1, "stop_token_ids": (99,)}, "stop_token_ids: got 99"),
    ],
)
def test_ids_and_lengths_that_cannot_be_are_refused(params: dict[str, Any], named: str) -> None:
    """Case B32: before anything is computed, with name, value and range."""
    with pytest.raises(RequestError) as caught:
        Rig(TARGET).submit(asked(**params))
    assert str(caught.value).startswith(named)


token_ids = st.integers(0, VOCAB - 1)
params = st.fixed_dictionaries(
    {"temperature": st.sampled_from((0.0, 0.7, 1.2)), "max_tokens": st.integers(1, 16)},
    optional={
        "top_p": st.sampled_from((0.9, 0.3)),
        "top_k": st.just(5),
        "min_p": st.just(0.1),
        "repetition_penalty": st.sampled_from((0.8, 1.3, 2.0)),
        "presence_penalty": st.sampled_from((-1.0, 2.0)),
        "frequency_penalty": st.sampled_from((-2.0, 1.5)),
        "logit_bias": st.lists(st.tuples(token_ids, st.sampled_from((-100.0, 3.0))), max_size=3).map(tuple),
        "allowed_token_ids": st.lists(token_ids, min_size=6, unique=True).map(tuple),
        "banned_token_ids": st.lists(token_ids, max_size=5).map(tuple),
        "bad_words": st.lists(st.text("AbC dEf", min_size=1, max_size=3), max_size=3).map(tuple),
        "min_tokens": st.integers(0, 1),
        "stop_token_ids": st.lists(token_ids, max_size=3).map(tuple),
        "ignore_eos": st.just(False),
        "seed": st.integers(0, 9),
    },
)


def _together(given_params: list[dict[str, Any]], mode: Mode, draft: str, length: int) -> None:
    """A batch of requests with different rules: each as alone without speculation, errors too."""
    worker = draft_worker(decoder_draft(TARGET if draft == "self" else OTHER), 8)
    rig = Rig(TARGET, worker, mode=mode, length=length, fallback=("draft",))
    requests = [replace(asked(**chosen), id=str(i)) for i, chosen in enumerate(given_params)]
    for request in requests:
        rig.submit(request)
    asyncio.run(rig.run())
    for request in requests:
        try:
            expected: Answer | str = plain(request)
        except RequestError as error:
            expected = str(error)
        if isinstance(expected, str):
            with pytest.raises(RequestError) as caught:
                rig.answer(request.id)
            assert str(caught.value) == expected
        else:
            got = rig.answer(request.id)
            assert (got.token_ids, got.text) == (expected.token_ids, expected.text)
            assert got.finish_reason == expected.finish_reason


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(params, min_size=1, max_size=4),
    st.sampled_from(MODES),
    st.sampled_from(("self", "other")),
    st.integers(1, 8),
)
def test_any_rules_together_mean_the_same_with_speculation(
    given_params: list[dict[str, Any]], mode: Mode, draft: str, length: int
) -> None:
    """Ids, text and reason; and what is impossible is impossible at the same place."""
    _together(given_params, mode, draft, length)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(params, min_size=1, max_size=4),
    st.sampled_from(MODES),
    st.sampled_from(("self", "other")),
    st.integers(1, 8),
)
def test_any_rules_together_mean_the_same_with_speculation_in_many_cases(
    given_params: list[dict[str, Any]], mode: Mode, draft: str, length: int
) -> None:
    """The same, for longer."""
    _together(given_params, mode, draft, length)


@pytest.mark.parametrize("policy", ["autoregressive", "speculative", "ssd", "hybrid"])
async def test_plain_and_ruled_requests_share_a_batch(policy: str) -> None:
    """On a real engine, where plain rows may be drawn without logits: each row as alone."""
    ruled = [asked(temperature=0.8, **RULES[name]) for name in ("logit_bias", "repetition_penalty")]
    told = [asked(temperature=0.8, logprobs=2, prompt_logprobs=1), asked(prompt_logprobs=1)]
    free = [asked(temperature=0.8, seed=seed) for seed in range(3)]
    requests = [request for group in zip(free, [*ruled, told[0]], strict=True) for request in group]
    requests = [replace(request, id=str(i)) for i, request in enumerate([*requests, told[1]])]
    async with toy_engine(f"scheduler.policy={policy}") as engine:
        answers = await asyncio.gather(*map(engine.complete, requests))
    for request, answer in zip(requests, answers, strict=True):
        expected = await asyncio.to_thread(plain, request)
        assert answer.token_ids == expected.token_ids
        assert [entry.token_id for entry in answer.logprobs] == [
            entry.token_id for entry in expected.logprobs
        ]
        assert [entry.logprob for entry in (*answer.logprobs, *answer.prompt_logprobs[1:])] == pytest.approx(
            [entry.logprob for entry in (*expected.logprobs, *expected.prompt_logprobs[1:])], abs=1e-5
        )


ORACLES: dict[str, Any] = {
    "repetition_penalty": lambda: RepetitionPenaltyLogitsProcessor(1.8),
    "logit_bias": lambda: SequenceBiasLogitsProcessor({(DEFAULT[0],): -100.0, (40,): 2.0}),
    "banned_token_ids": lambda: SuppressTokensLogitsProcessor(list(DEFAULT[2:4])),
    "bad_words": lambda: NoBadWordsLogitsProcessor(
        [
            TARGET.tokenizer.encode(plain(asked()).text[1:3]),
            TARGET.tokenizer.encode(" " + plain(asked()).text[1:3]),
        ]
    ),
    "min_tokens": lambda: MinNewTokensLengthLogitsProcessor(3, 9, [DEFAULT[0], DEFAULT[1]]),
}


@pytest.mark.parametrize("name", ORACLES)
def test_greedy_answers_are_those_of_transformers_processors(name: str) -> None:
    """A greedy loop over the model's logits with transformers' own class gives the same ids."""
    processor, decoder = ORACLES[name](), TARGET.decoder
    text = [9, 30, 12]
    for _ in range(20):
        row = ForwardRow(tuple(text), 0, tuple(range(16)), 1)
        logits = decoder.forward([row], decoder.new_kv(16, 4))
        text.append(int(processor(torch.tensor([text]), logits.clone()).argmax()))
    expected = tuple(text[3:])
    got = plain(asked(**RULES[name])).token_ids
    assert got == expected[: len(got)]
    assert len(got) == 20 or got[-1] in RULES[name]["stop_token_ids"]

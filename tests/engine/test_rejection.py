"""`sampler: rejection` through the engine: what is equal stays equal, what faults costs proposals only."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ssd_kernels import streams
from ssd_plugins.ngram import NgramProposer
from ssd_plugins.rejection import RejectionSampler
from ssd_runtime.errors import ConfigError
from ssd_runtime.messages import Draw
from ssd_runtime.sampling.draw import UNUSABLE, draft_step
from ssd_runtime.settings.request import parse_params
from ssd_runtime.speculation.fallback import ProposerSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.scripted import VOCAB, ScriptedDraft, faltering
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams

TARGET, OTHER = toy_decoder(1), toy_decoder(2)
SPELLING = 128
MODES = [Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD]
SAMPLER = RejectionSampler()


def asked(name: str = "a", **params: Any) -> Request:
    chosen = {"temperature": 0.9, "max_tokens": 24, "seed": 4, "ignore_eos": True} | params
    return Request(name, prompt_token_ids=(9, 30, 12), params=SamplingParams(**chosen))


def answers(*requests: Request, mode: Mode = Mode.SSD, coupled: bool = False, **rig: Any) -> list[Answer]:
    """By an engine whose draft has other weights; misses go to n-grams, then to the draft."""
    sampler = None if coupled else rig.pop("sampler", SAMPLER)
    draft = rig.pop("draft", None) or decoder_draft(OTHER)
    guarded = GuardedProposer(NgramProposer(), vocab_size=VOCAB, time_limit=1.0, trusted=True)
    fallback = (ProposerSource("ngram", guarded), "draft")
    worker = draft_worker(draft, 8, sampler=sampler)
    made = Rig(TARGET, worker, mode=mode, sampler=sampler, fallback=fallback, **rig)
    return asyncio.run(made.answers(*requests))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "rules", [{}, {"repetition_penalty": 1.5, "frequency_penalty": 0.5}, {"banned_token_ids": (47, 39)}]
)
def test_greedy_ids_are_those_of_the_coupled_sampler(mode: Mode, rules: dict[str, Any]) -> None:
    """Temperature 0 has no chance in it, in no mode and under no rule."""
    asked_for = asked(temperature=0, **rules)
    [expected] = answers(asked_for, mode=Mode.AUTOREGRESSIVE, coupled=True)
    assert answers(asked_for, mode=mode)[0].token_ids == expected.token_ids


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    """Each greedy one is as alone; each sampled one is a sample by the same seed's own numbers."""
    requests = [asked(f"{i}", temperature=(0, 0.8)[i % 2], seed=i) for i in range(4)]
    [greedy] = answers(requests[0], mode=Mode.AUTOREGRESSIVE)
    together = answers(*requests)
    assert together[0].token_ids == together[2].token_ids == greedy.token_ids
    assert together[1].token_ids != together[3].token_ids
    assert all(len(answer.token_ids) == 24 for answer in together)


def test_a_seed_gives_the_same_text_again_where_the_rounds_are_the_same() -> None:
    """The numbers depend on seed, position and line only."""
    assert answers(asked())[0].token_ids == answers(asked())[0].token_ids
    assert answers(asked())[0].token_ids != answers(asked(seed=5))[0].token_ids


def test_the_target_as_its_own_draft_is_always_accepted() -> None:
    """p = q leaves nothing to reject."""
    stats = answers(asked(), mode=Mode.SPECULATIVE, draft=decoder_draft(TARGET))[0].speculation
    assert stats.accepted_tokens == stats.draft_tokens > 0


def test_a_lower_c_accepts_less() -> None:
    """The price of Saguaro sampling, on the target as its own draft."""
    requests = [asked(f"{i}", seed=i, top_p=0.9) for i in range(4)]
    made = answers(
        *requests,
        mode=Mode.SPECULATIVE,
        sampler=RejectionSampler(c=0.2, fan_out=1),
        draft=decoder_draft(TARGET),
    )
    stats = [answer.speculation for answer in made]
    assert 0.2 < sum(one.accepted_tokens for one in stats) / sum(one.draft_tokens for one in stats) < 0.95


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_numbers_of_no_use_in_a_draft_cost_its_proposals_only(mode: Mode, value: float) -> None:
    """Now and then, or always: the answer comes, whole."""
    rubbish = torch.full((VOCAB,), value)
    for rule in (lambda ids: rubbish, faltering(lambda ids: torch.zeros(VOCAB), 0.5)):
        [answer] = answers(asked(), mode=mode, draft=ScriptedDraft(rule))
        assert len(answer.token_ids) == 24


def test_numbers_of_no_use_in_the_target_end_the_request() -> None:
    """The sampler says so, and nothing is drawn."""
    rows = torch.stack((torch.full((4,), torch.nan), torch.zeros(4)))
    tokens = SAMPLER.draw(rows, [Draw(1, 1.0)] * 2, [5, 5])
    assert tokens[0] == UNUSABLE
    assert 0 <= tokens[1] < 4


@pytest.mark.parametrize("mode", MODES)
def test_rules_hold_at_every_position(mode: Mode) -> None:
    """Banned tokens, and penalties."""
    banned = tuple(range(0, VOCAB, 2))
    [odd] = answers(asked(banned_token_ids=banned), mode=mode)
    assert not set(odd.token_ids) & set(banned)
    [once] = answers(asked(frequency_penalty=2.0, presence_penalty=2.0, top_p=0.01), mode=mode)
    assert len(once.token_ids) == 24


@pytest.mark.parametrize("mode", MODES)
def test_a_grammar_masks_p_and_q_and_trims_no_draft(mode: Mode) -> None:
    """One of two words, by a model that can spell; its draft's tokens are allowed ones too."""
    speller = toy_decoder(1, vocab=SPELLING)
    worker = draft_worker(decoder_draft(toy_decoder(2, vocab=SPELLING)), 8, SPELLING, SAMPLER)
    rig = Rig(speller, worker, mode=mode, sampler=SAMPLER, fallback=("draft",))
    params = parse_params({"guided_choice": ["yes", "yesterday", "no"], "temperature": 1.0}, SamplingParams())
    requests = [
        Request(f"{seed}", prompt_token_ids=(9, 30), params=replace(params, seed=seed, max_tokens=20))
        for seed in range(8)
    ]
    made = asyncio.run(rig.answers(*requests))
    assert {answer.text for answer in made} <= {"yes", "yesterday", "no"}
    accepted = [answer.speculation.accepted_tokens for answer in made]
    assert mode is Mode.AUTOREGRESSIVE or sum(accepted) > 0


def test_log_probabilities_are_the_targets() -> None:
    """Of every token that was emitted, whoever proposed it."""
    [answer] = answers(asked(logprobs=2))
    assert answer.logprobs is not None
    assert [entry.token_id for entry in answer.logprobs] == list(answer.token_ids)


def test_every_number_of_a_draft_is_used_for_one_line_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of different commands never share a word, so that what one drew says nothing of another."""
    seen: dict[tuple[tuple[int, int], int], set[tuple[int, ...]]] = {}
    original = streams.proposal_word

    def noted(seed: int, line: tuple[int, int], position: int) -> int:
        if line != Draw(0, 1.0).line:
            seen.setdefault((line, position), set()).add((line[0], worker_passes[0]))
        return original(seed, line, position)

    worker_passes = [0]
    monkeypatch.setattr(streams, "proposal_word", noted)

    def rule(token_ids: Sequence[int]) -> Tensor:
        return torch.zeros(VOCAB)

    def before_pass(number: int) -> None:
        worker_passes[0] = number

    answers(asked(), draft=ScriptedDraft(rule, before_pass=before_pass))
    assert len(seen) > 24
    assert all(len(passes) == 1 for passes in seen.values())


def test_a_drafts_candidates_are_its_likeliest_tokens() -> None:
    """Without noise and without truncation, however `c` lowers them; greedy as under the coupled rule."""
    logits, draw = torch.tensor([[0.0, 3.0, 2.0, 1.0]]), Draw(3, 1.0, top_k=1)
    [step] = RejectionSampler(c=0.1, fan_out=2).draft(logits, [draw], [7], 3)
    assert (step.token, step.candidates) == (1, (1, 2, 3))
    assert step.odds is not None
    assert step.odds.token_ids.tolist() == [1]
    assert SAMPLER.draft(logits, [replace(draw, temperature=0)], [7], 3) == [
        draft_step(logits[0], Draw(3, 0.0), 7, 3)
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 0}, "option 'c': got 0, expected a number above 0, up to 1"),
        ({"c": 1.5}, "option 'c': got 1.5"),
        ({"c": True}, "option 'c': got True"),
        ({"fan_out": 0}, "option 'fan_out': got 0, expected a whole number, at least 1"),
        ({"fan_out": 2.5}, "option 'fan_out': got 2.5"),
        ({"d": 1, "c": 0.5}, "unknown option 'd'; allowed: c, fan_out"),
    ],
)
async def test_wrong_options_stop_the_start(options: dict[str, Any], message: str) -> None:
    """With the place in the configuration."""
    text = json.dumps({"name": "rejection", **options})
    with pytest.raises(
        ConfigError, match=r"--set engine\.sampler: sampler 'rejection' cannot be made: "
    ) as caught:
        async with toy_engine(f"engine.sampler={text}"):
            pass
    assert message in str(caught.value)


@pytest.mark.parametrize("chosen", ["rejection", "{name: rejection, c: 0.5, fan_out: 2}"])
async def test_a_configuration_that_names_it_starts(chosen: str) -> None:
    """Beside a native draft too: nothing is drawn behind the sampler's back."""
    async with toy_engine(f"engine.sampler={chosen}", "engine.draft_model=toy/5") as engine:
        assert len((await engine.complete(asked())).token_ids) == 24

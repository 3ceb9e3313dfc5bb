"""More faults that were reported of other engines: see docs/cases.md for all of them."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from ssd_plugins.ngram import NgramProposer
from ssd_plugins.rejection import RejectionSampler
from ssd_plugins.suffix import SuffixProposer
from ssd_runtime.hooks.kinds import Sampler
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.settings.request import parse_params
from ssd_runtime.speculation.fallback import ProposerSource
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.proposing import ProposerWorker
from ssd_runtime.testing.rig import Rig, decoder_draft, draft_worker
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Mode, Request, SamplingParams

VOCAB = 128
TARGET, OTHER = toy_decoder(1, vocab=VOCAB), toy_decoder(2, vocab=VOCAB)
MODES = (Mode.SPECULATIVE, Mode.SSD)
EACH_MODE = pytest.mark.parametrize("mode", MODES)
CALL = '<tool_call>{"name": "f", "arguments": {"city": "Rome"}}</tool_call>'


def asked(prompt: str = "ab", **fields: Any) -> Request:
    chosen = {"temperature": 0.0, "max_tokens": 40, "seed": 3, "ignore_eos": True} | fields
    ids = tuple(TARGET.tokenizer.encode(prompt))
    return Request("a", prompt_token_ids=ids, params=parse_params(chosen, SamplingParams()))


BIAS = {str(token): 3.0 for token in TARGET.tokenizer.encode('{"ae:}')}
"""Tokens of the prompt are likely, so that something is found there."""


def plain(*requests: Request, model: LoadedModel = TARGET) -> list[Answer]:
    return asyncio.run(Rig(model, mode=Mode.AUTOREGRESSIVE).answers(*requests))


@EACH_MODE
@pytest.mark.parametrize("proposer", [NgramProposer(min_match=1), SuffixProposer()])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_prompt_full_of_repetition_is_neither_repeated_nor_mangled(
    mode: Mode, proposer: Any, temperature: float
) -> None:
    """Case B14: tool calls in the prompt that look-ups love to copy; as the draft, and as a fallback."""
    requests = [
        replace(asked(CALL * 2 + f"|{i}", temperature=temperature, logit_bias=BIAS), id=str(i))
        for i in range(2)
    ]
    expected = [(answer.token_ids, answer.text) for answer in plain(*requests)]
    guarded = GuardedProposer(proposer, vocab_size=VOCAB, time_limit=1.0, trusted=True)
    fallback = ProposerSource("lookup", guarded)
    alone = Rig(TARGET, ProposerWorker(proposer, VOCAB), mode=mode, length=8)
    behind = Rig(TARGET, draft_worker(decoder_draft(OTHER), 8, VOCAB), mode=mode, fallback=(fallback,))
    for rig in (alone, behind):
        answers = asyncio.run(rig.answers(*requests))
        assert [(answer.token_ids, answer.text) for answer in answers] == expected
        assert sum(answer.speculation.draft_tokens for answer in answers) > 0


def all_logits(token_ids: tuple[int, ...]) -> Tensor:
    """The target's logits after each of the tokens, in one pass of its own."""
    blocks = tuple(range(-(-len(token_ids) // 16)))
    row = ForwardRow(token_ids, 0, blocks, len(token_ids))
    return TARGET.decoder.forward([row], TARGET.decoder.new_kv(len(blocks), 16))


@EACH_MODE
@pytest.mark.parametrize("sampler", [None, RejectionSampler(), RejectionSampler(c=0.4, fan_out=2)])
@pytest.mark.parametrize("length", [1, 3])
def test_every_token_of_a_long_answer_was_possible_where_it_stands(
    mode: Mode, sampler: Sampler | None, length: int
) -> None:
    """Case B16: of a rejected draft nothing stays, neither the token nor what had been drafted behind it."""
    worker = draft_worker(decoder_draft(OTHER), 8, VOCAB, sampler)
    rig = Rig(TARGET, worker, mode=mode, sampler=sampler, length=length, fallback=("draft",), context=512)
    request = asked(temperature=1.0, top_k=3, max_tokens=90)
    [answer] = asyncio.run(rig.answers(request))
    assert answer.speculation.accepted_tokens < answer.speculation.draft_tokens
    text = (*answer.prompt_token_ids, *answer.token_ids)
    likely = all_logits(text).topk(3).indices
    for place in range(len(answer.prompt_token_ids), len(text)):
        assert text[place] in likely[place - 1]


@EACH_MODE
@pytest.mark.parametrize("at", range(6))
@pytest.mark.parametrize("draft", [TARGET, OTHER], ids=["self", "other"])
def test_a_rule_that_begins_behind_a_marker_begins_inside_accepted_spans_too(
    mode: Mode, at: int, draft: LoadedModel
) -> None:
    """Case B40: free text, a marker, then digits only; the marker at each offset of a span of K + 1 = 5."""
    request = asked(guided_regex=f"[a-zA-Z]{{{at}}}</t>[0-9]{{4}}", ignore_eos=False)
    rig = Rig(TARGET, draft_worker(decoder_draft(draft), 8, VOCAB), mode=mode, fallback=("draft",))
    [answer] = asyncio.run(rig.answers(request))
    assert re.fullmatch(f"[a-zA-Z]{{{at}}}</t>[0-9]{{4}}", answer.text)
    assert answer.token_ids == plain(request)[0].token_ids
    if draft is TARGET:
        assert answer.speculation.accepted_tokens == answer.speculation.draft_tokens > 4

"""Answers in OpenAI's words, with what it has no words for beside them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from ssd_runtime.faces import described
from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.types import Answer, Output, SamplingParams


def whole(endpoint: Endpoint, answer: Answer, model: str, params: SamplingParams) -> dict[str, Any]:
    """The body of an answer that is sent at once."""
    choices = [
        {
            "index": index,
            **endpoint.choice(each),
            **_told(endpoint, each, params, 0),
            **_seed_of(each, answer),
        }
        for index, each in enumerate(answer.every)
    ]
    return {
        **_head(answer.request_id, endpoint.name, model),
        "choices": choices,
        "usage": usage(answer),
        **statistics(answer),
    }


def chunk(
    endpoint: Endpoint, piece: Output, model: str, params: SamplingParams, *, before: str | None
) -> dict[str, Any]:
    """The event that carries one piece. before: the text of the choice so far, None at its beginning."""
    delta = endpoint.delta(piece.text, is_first=before is None)
    told = _told(endpoint, piece, params, len(before or ""))
    return {
        **_head(piece.request_id, endpoint.chunk_name, model),
        "choices": [{"index": piece.index, **delta, **told}],
    }


def _seed_of(choice: Answer, answer: Answer) -> dict[str, Any]:
    """Each choice's own seed, where there are several."""
    return {"seed": choice.seed} if answer.choices else {}


def _told(endpoint: Endpoint, part: Answer | Output, params: SamplingParams, offset: int) -> dict[str, Any]:
    """What is said of a choice beside its text: log probabilities, the reason it ended, the ids."""
    entries = part.logprobs
    apart: dict[str, Any] = {}
    if part.prompt_logprobs and params.echo and params.logprobs is not None:
        entries = (*part.prompt_logprobs, *entries)
    elif part.prompt_logprobs:
        apart["prompt_logprobs"] = list(map(described, part.prompt_logprobs))
    logprobs = endpoint.logprobs(entries, offset) if params.logprobs is not None else None
    return {"logprobs": logprobs, "finish_reason": part.finish_reason, "token_ids": part.token_ids, **apart}


def usage_chunk(endpoint: Endpoint, answer: Answer, model: str) -> dict[str, Any]:
    """The event after the last piece, where `stream_options.include_usage` asks for it."""
    return {**_head(answer.request_id, endpoint.chunk_name, model), "choices": [], "usage": usage(answer)}


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens, counted as OpenAI counts them; draft tokens are its predictions."""
    every = answer.every
    prompt, completion = len(answer.prompt_token_ids), sum(len(each.token_ids) for each in every)
    accepted = sum(each.speculation.accepted_tokens for each in every)
    drafted = sum(each.speculation.draft_tokens for each in every)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def statistics(answer: Answer) -> dict[str, Any]:
    """What OpenAI does not have: the seed, the times, and what speculation did."""
    return {
        "seed": answer.seed,
        "timing": asdict(answer.timing),
        "speculation": asdict(answer.speculation),
    }


def models(model: str, max_context: int | None) -> dict[str, Any]:
    """The list of the one model that is served."""
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "ssd_runtime"}
    return {"object": "list", "data": [entry | {"max_model_len": max_context}]}


def _head(request_id: str, name: str, model: str) -> dict[str, Any]:
    return {"id": request_id, "object": name, "created": int(time.time()), "model": model}

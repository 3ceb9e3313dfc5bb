"""Answers in OpenAI's words, with what it has no words for beside them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.types import Answer, Output


def whole(endpoint: Endpoint, answer: Answer, model: str) -> dict[str, Any]:
    """The body of an answer that is sent at once."""
    end = {"logprobs": None, "finish_reason": answer.finish_reason, "token_ids": answer.token_ids}
    return {
        **_head(answer.request_id, endpoint.name, model),
        "choices": [{"index": 0, **endpoint.choice(answer), **end}],
        "usage": usage(answer),
        **statistics(answer),
    }


def chunk(endpoint: Endpoint, piece: Output, model: str, *, is_first: bool) -> dict[str, Any]:
    """The event that carries one piece; the last one has the finish reason and our statistics."""
    end = {"logprobs": None, "finish_reason": piece.finish_reason, "token_ids": piece.token_ids}
    return {
        **_head(piece.request_id, endpoint.chunk_name, model),
        "choices": [{"index": 0, **endpoint.delta(piece.text, is_first=is_first), **end}],
    }


def usage_chunk(endpoint: Endpoint, answer: Answer, model: str) -> dict[str, Any]:
    """The event after the last piece, where `stream_options.include_usage` asks for it."""
    return {**_head(answer.request_id, endpoint.chunk_name, model), "choices": [], "usage": usage(answer)}


def usage(answer: Answer) -> dict[str, Any]:
    """Tokens, counted as OpenAI counts them; draft tokens are its predictions."""
    prompt, completion = len(answer.prompt_token_ids), len(answer.token_ids)
    drafts = answer.speculation
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "accepted_prediction_tokens": drafts.accepted_tokens,
            "rejected_prediction_tokens": drafts.draft_tokens - drafts.accepted_tokens,
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

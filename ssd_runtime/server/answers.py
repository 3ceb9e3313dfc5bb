"""Answers in OpenAI's words, with what it has no words for beside them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ssd_runtime.faces import described, speculation_fields
from ssd_runtime.server.endpoints import Endpoint
from ssd_runtime.types import Answer, Mode, Output, Request, SpeculationStats, Timing


class Wording:
    """Words the answer to one request, at once or piece by piece.

    most_drafts: the longest draft of a round, `engine.speculative_length`.
    """

    def __init__(self, endpoint: Endpoint, request: Request, model: str, most_drafts: int) -> None:
        self._endpoint = endpoint
        self._request = request
        self._params = request.params
        self._model = model
        self._most_drafts = most_drafts
        self._characters: dict[int, int] = {}
        self._num_prompt = 0
        self._num_tokens = 0
        self._ends: dict[int, Output] = {}

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The body of an answer that is sent at once."""
        every = answer.every
        choices = [
            {
                "index": index,
                **self._endpoint.choice(each),
                **self._told(each, 0),
                **({"seed": each.seed} if answer.choices else {}),
            }
            for index, each in enumerate(every)
        ]
        stats = [each.speculation for each in every]
        return {
            **self._head(self._endpoint.name),
            "choices": choices,
            "usage": usage(
                len(answer.prompt_token_ids),
                min(each.cached_tokens for each in every),
                sum(len(each.token_ids) for each in every),
                stats,
            ),
            "metrics": self._metrics(stats),
            **_statistics(answer.seed, answer.timing, answer.speculation),
        }

    def chunk(self, piece: Output) -> dict[str, Any]:
        """The event that carries one piece."""
        before = self._characters.get(piece.index)
        self._characters[piece.index] = (before or 0) + len(piece.text)
        self._num_prompt = max(self._num_prompt, len(piece.prompt_token_ids))
        self._num_tokens += len(piece.token_ids)
        delta = self._endpoint.delta(piece.text, is_first=before is None)
        choice = {"index": piece.index, **delta, **self._told(piece, before or 0)}
        event = {**self._head(self._endpoint.chunk_name), "choices": [choice]}
        if piece.finish_reason is not None and piece.timing is not None and piece.speculation is not None:
            self._ends[piece.index] = piece
            event |= _statistics(piece.seed, piece.timing, piece.speculation)
        return event

    def usage_so_far(self) -> dict[str, Any]:
        """Beside a piece: the tokens up to it, where `continuous_usage_stats` asks for them."""
        return _counts(self._num_prompt, self._num_tokens)

    def usage_chunk(self) -> dict[str, Any]:
        """The event after the last piece, where `stream_options.include_usage` asks for it."""
        stats = [end.speculation for end in self._ends.values() if end.speculation is not None]
        num_cached = min((end.cached_tokens for end in self._ends.values()), default=0)
        return {
            **self._head(self._endpoint.chunk_name),
            "choices": [],
            "usage": usage(self._num_prompt, num_cached, self._num_tokens, stats),
            "metrics": self._metrics(stats),
        }

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self._request.id, "object": name, "created": int(time.time()), "model": self._model}

    def _told(self, part: Answer | Output, offset: int) -> dict[str, Any]:
        """What is said of a choice beside its text: log probabilities, the reason it ended, the ids."""
        entries, asked = part.logprobs, self._params.logprobs
        apart: dict[str, Any] = {}
        if part.prompt_logprobs and self._params.echo and asked is not None:
            entries = (*part.prompt_logprobs, *entries)
        elif part.prompt_logprobs:
            apart["prompt_logprobs"] = list(map(described, part.prompt_logprobs))
        logprobs = self._endpoint.logprobs(entries, offset) if asked is not None else None
        return {
            "logprobs": logprobs,
            "finish_reason": part.finish_reason,
            "token_ids": part.token_ids,
            **apart,
        }

    def _metrics(self, stats: Sequence[SpeculationStats]) -> dict[str, Any]:
        """vLLM's `metrics`; of several answers it says nothing."""
        only = stats[0] if len(stats) == 1 else None
        return {"speculative_decoding": speculative_decoding(only, self._most_drafts) if only else None}


def usage(
    num_prompt: int, num_cached: int, num_completion: int, stats: Sequence[SpeculationStats]
) -> dict[str, Any]:
    """Tokens, counted as OpenAI counts them; draft tokens are its predictions.

    num_cached: how many of the prompt's were found in the prefix cache, for every choice.
    """
    accepted = sum(each.accepted_tokens for each in stats)
    drafted = sum(each.draft_tokens for each in stats)
    return {
        **_counts(num_prompt, num_completion),
        "prompt_tokens_details": {"cached_tokens": num_cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        },
    }


def _counts(num_prompt: int, num_completion: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def speculative_decoding(stats: SpeculationStats, most_drafts: int) -> dict[str, Any] | None:
    """vLLM's figures of one answer, over rounds that had a draft; None where nothing could be drafted."""
    if stats.mode == Mode.AUTOREGRESSIVE:
        return None
    steps = sum(map(sum, stats.histograms.values()))
    accepted, drafted = stats.accepted_tokens, stats.draft_tokens
    return {
        "mean_acceptance_length": 1 + accepted / steps if steps else 1.0,
        "draft_acceptance_rate": accepted / drafted if drafted else 0.0,
        "acceptance_histogram": _joined(stats.histograms, most_drafts),
        "acceptance_histogram_by_draft_length": {
            str(length): list(counts) for length, counts in sorted(stats.histograms.items())
        },
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": accepted,
        "num_draft_tokens": drafted,
        "num_spec_tokens": most_drafts,
    }


def models(model: str, max_context: int | None) -> dict[str, Any]:
    """The list of the one model that is served."""
    return {"object": "list", "data": [described_model(model, max_context)]}


def described_model(model: str, max_context: int | None) -> dict[str, Any]:
    """The served model."""
    entry = {"id": model, "object": "model", "created": 0, "owned_by": "ssd_runtime"}
    return entry | {"max_model_len": max_context}


def _joined(histograms: Mapping[int, Sequence[int]], most_drafts: int) -> list[int]:
    joined = [0] * (1 + max((most_drafts, *histograms)))
    for counts in histograms.values():
        for accepted, count in enumerate(counts):
            joined[accepted] += count
    return joined


def _statistics(seed: int | None, timing: Timing, speculation: SpeculationStats) -> dict[str, Any]:
    """What OpenAI does not have: the seed, the times, and what speculation did."""
    return {"seed": seed, "timing": asdict(timing), "speculation": speculation_fields(speculation)}

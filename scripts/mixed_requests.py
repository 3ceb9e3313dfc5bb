"""Requests of mixed length, priority and parameters, some of whose clients leave; the same for a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from scripts.prompts import SHIPPED, load_prompts
from ssd_runtime.settings.request import parse_request
from ssd_runtime.types import Request, SamplingParams

BEGINNINGS = (
    "",
    "You answer briefly. ",
    "You are a patient assistant who explains things in plain words, with an example for each, who never "
    "guesses, and who says so where something is not known. ",
)
"""What many prompts share, so that there is something to find in the prefix cache."""
MOST_PARTS = 3
PRIORITIES = (-1, 0, 0, 1, 2)
WISHES: Sequence[Mapping[str, Any]] = (
    {"temperature": 0.0},
    {"temperature": 1.2},
    {"top_p": 0.8},
    {"top_k": 20},
    {"min_p": 0.05},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.5},
    {"logit_bias": {28: 2.0, 314: -100.0, 198: -4.0}},
    {"bad_words": [" the", "and"]},
    {"banned_token_ids": [253, 260, 276]},
    {"min_tokens": 4},
    {"stop": [".", "\n\n"]},
    {"stop": [" is"], "include_stop_str_in_output": True},
    {"stop_token_ids": [30, 284]},
    {"logprobs": 2},
    {"prompt_logprobs": 0},
    {"echo": True},
    {"n": 2},
    {"response_format": {"type": "json_object"}},
    {"prediction": {"type": "content", "content": "The sky is blue, and the sea is too."}},
    {"speculation": {"length": 2}},
    {"speculation": {"mode": "speculative"}},
    {"speculation": {"mode": "ssd"}},
    {"speculation": {"mode": "autoregressive"}},
)
"""In SmolLM2's ids: of commas, "is" and line breaks; articles; "." and "and"."""
MOST_WISHES = 3
LEAVING = 0.1
MOST_PIECES = 8
MOST_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A request, and when its client leaves: after so many pieces, after so many seconds, or never."""

    request: Request
    pieces: int | None = None
    seconds: float | None = None

    @property
    def leaves(self) -> bool:
        """Whether the client does not want the whole answer."""
        return self.pieces is not None or self.seconds is not None


def plan(count: int, seed: int, least_tokens: int, most_tokens: int) -> list[Planned]:
    """`count` requests for `least_tokens` to `most_tokens` tokens each; a tenth of the clients leave."""
    random = Random(seed)
    texts = [prompt.text for prompt in load_prompts([str(SHIPPED)])]
    return [
        _left(_request(random, texts, index, random.randint(least_tokens, most_tokens)), random)
        for index in range(count)
    ]


def _request(random: Random, texts: Sequence[str], index: int, max_tokens: int) -> Request:
    parts = random.sample(texts, random.randint(1, MOST_PARTS))
    wishes = random.sample(WISHES, random.randint(0, MOST_WISHES))
    data = {name: value for wish in wishes for name, value in wish.items()}
    data |= {
        "id": str(index),
        "prompt": random.choice(BEGINNINGS) + " ".join(parts),
        "raw": random.random() < 0.5,
        "max_tokens": max_tokens,
        "priority": random.choice(PRIORITIES),
        "seed": random.getrandbits(32),
    }
    return parse_request(data, index=index, defaults=SamplingParams(temperature=0.7, top_p=0.9))


def _left(request: Request, random: Random) -> Planned:
    if random.random() >= LEAVING:
        return Planned(request)
    if random.random() < 0.5:
        return Planned(request, pieces=random.randint(1, MOST_PIECES))
    return Planned(request, seconds=random.uniform(0.0, MOST_SECONDS))

"""Every two values of any two parameters meet in some request, and all say what plain decoding says.

Ids, text, finish reason, usage and log probabilities, for every K from 1 to 8, with look-ups that hit, miss,
or do either, in batches whose rows ask for different things, streamed or not. A toy model stands for the
real one in the fast suite; `make test-long` asks SmolLM2.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest

from ssd_runtime.app import Engine
from ssd_runtime.build import Progress
from ssd_runtime.errors import RequestError
from ssd_runtime.faces import answer_of
from ssd_runtime.models.linear import Quantizer
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.request import parse_request
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Answer, Request, SamplingParams, SpeculationParams, TokenLogprob

VOCAB = 96
Values = Mapping[str, Any]
FACTORS: dict[str, Sequence[Any]] = {
    "temperature": (0.0, 0.7, 1.3),
    "top_p": (1.0, 0.7),
    "top_k": (0, 12),
    "min_p": (0.0, 0.08),
    "repetition_penalty": (1.0, 1.3),
    "presence_penalty": (0.0, 1.0),
    "frequency_penalty": (0.0, -0.6, 0.9),
    "logit_bias": (None, {70: 3.0, 71: -100.0, 72: -100.0}),
    "bad_words": (None, ["e", "an"]),
    "banned_token_ids": (None, [68, 75, 80]),
    "allowed_token_ids": (None, [0, *range(2, 96)]),
    "min_tokens": (0, 7),
    "max_tokens": (9, 24),
    "stop": (None, ["a", "Th", "."]),
    "include_stop_str_in_output": (False, True),
    "stop_token_ids": (None, [44, 79]),
    "ignore_eos": (False, True),
    "logprobs": (None, 0, 3),
    "prompt_logprobs": (None, 1),
    "echo": (False, True),
    "n": (1, 2),
    "response_format": (None, {"type": "json_object"}),
    "guided_regex": (None, "[A-Za-z ]{4,40}!"),
    "prediction": (None, {"type": "content", "content": "The sky is blue."}),
    "speculation": (None, {"length": 2}, {"mode": "speculative"}, {"enabled": False}),
    "seed": (1, 2),
}
REAL: dict[str, Any] = {
    "logit_bias": {28: 2.0, 314: -100.0, 198: -4.0},
    "banned_token_ids": [253, 260, 276],
    "allowed_token_ids": [*range(2, 40_000)],
    "stop_token_ids": [30, 284],
}
"""The same wishes in SmolLM2's ids: of commas, "is" and line breaks; articles; rare tokens; "." and "and"."""
PROMPTS = ("Name a colour.", "The sky is", "Count: one, two,")


def excluded(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Two wishes that contradict each other."""
    given = {name for name, value in (one, other) if value not in (None, False)}
    structures = {"response_format", "guided_regex"}
    without = ("speculation", {"enabled": False}) in (one, other)
    return (
        given == structures
        or ("ignore_eos" in given and bool(given & structures))
        or ("prediction" in given and without)
    )


def pairs(row: Values) -> set[tuple[tuple[str, str], ...]]:
    """Any two parameters of a row with their values."""
    return set(itertools.combinations(((name, repr(value)) for name, value in row.items()), 2))


def covering(factors: Mapping[str, Sequence[Any]], random: Random) -> list[dict[str, Any]]:
    """Rows in which every two values that do not exclude each other meet; few of them, found greedily."""

    def completed(row: dict[str, Any]) -> dict[str, Any]:
        for name in random.sample(list(factors), len(factors)):
            if name not in row:
                fitting = [
                    value
                    for value in factors[name]
                    if not any(excluded((name, value), item) for item in row.items())
                ]
                row[name] = random.choice(fitting)
        return {name: row[name] for name in factors}

    wanted = [
        {one: a, other: b}
        for one, other in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[other])
        if not excluded((one, a), (other, b))
    ]
    covered: set[tuple[tuple[str, str], ...]] = set()
    rows = []
    for pair in wanted:
        if not pairs(pair) <= covered:
            tried = [completed(dict(pair)) for _ in range(60)]
            rows.append(max(tried, key=lambda row: len(pairs(row) - covered)))
            covered |= pairs(rows[-1])
    return rows


def asked(row: Values, index: int, ids: Values) -> Request:
    data = {name: ids.get(name, value) for name, value in row.items() if value is not None}
    data |= {"id": str(index), "prompt": PROMPTS[index % len(PROMPTS)], "raw": True}
    return parse_request(data, index=index, defaults=SamplingParams())


ROWS = covering(FACTORS, Random(0))
HITS: dict[str, tuple[str, ...]] = {
    "hits": ("engine.draft_quantization=none", "engine.branch_budget=8"),
    "misses": ("engine.draft_quantization=none", "engine.branch_budget=0"),
    "either": ("engine.draft_quantization=int4", "engine.branch_budget=2", "engine.cache_policy=geometric"),
}
CROWDED = 4
"""With this K rows are many enough for the low-latency mode."""
FALLBACKS = ("[]", "[shadow, ngram]", "[draft]")


@dataclass(frozen=True)
class Setting:
    """An engine: its mode, K, what its look-ups find, how many rows it has, whether answers are streamed."""

    mode: str
    length: int
    hits: str = "either"
    batch: int = 8
    streamed: bool = False

    def overrides(self) -> list[str]:
        """As settings."""
        return [
            f"scheduler.policy={self.mode}",
            f"engine.speculative_length={self.length}",
            f"engine.max_batch_size={self.batch}",
            f"engine.fallback={FALLBACKS[self.length % 3]}",
            f"engine.fallback_batch_threshold={2 if self.length == CROWDED else 100}",
            "scheduler.max_tokens=128",
            *HITS[self.hits],
        ]


SETTINGS = [
    Setting(mode, length, hits, batch=(1, 3, 8)[length % 3], streamed=bool(length % 2))
    for length in range(1, 9)
    for mode, hits in (("speculative", "either"), ("ssd", list(HITS)[length % 3]))
]
QUICK = (SETTINGS[1], SETTINGS[2], SETTINGS[3], SETTINGS[11])
"""One of each mode and each kind of look-ups."""
PLAIN = Setting("autoregressive", 1, batch=1)
Outcome = Answer | str
Start = Callable[[list[str]], Engine]


async def streamed(engine: Engine, request: Request) -> Answer:
    """Its pieces, each of which has something new; put together."""
    pieces = [piece async for piece in engine.generate(request)]
    assert all(piece.text or piece.token_ids or piece.finish_reason for piece in pieces)
    return answer_of(pieces)


async def outcomes(start: Start, setting: Setting, ids: Values | None = None) -> list[Outcome]:
    """What became of each row's request; errors as their messages."""
    requests = [asked(row, index, ids or {}) for index, row in enumerate(ROWS)]
    if setting is PLAIN:  # where predictions are refused
        requests = [replace(one, prediction=None, speculation=SpeculationParams()) for one in requests]

    async def outcome(engine: Engine, request: Request) -> Outcome:
        try:
            return await (streamed(engine, request) if setting.streamed else engine.complete(request))
        except RequestError as error:
            return str(error)

    async with start(setting.overrides()) as engine:
        return list(await asyncio.gather(*(outcome(engine, request) for request in requests)))


def flat(entries: Sequence[TokenLogprob]) -> list[tuple[int, float | None]]:
    """Every token with its log probability, alternatives behind it."""
    return [pair for entry in entries for pair in ((entry.token_id, entry.logprob), *flat(entry.top))]


def same(got: Outcome, expected: Outcome) -> None:
    """Everything that a client can see, except how it came about."""
    if isinstance(got, str) or isinstance(expected, str):
        assert got == expected
        return
    assert len(got.every) == len(expected.every)
    for one, other in zip(got.every, expected.every, strict=True):
        assert (one.token_ids, one.text, one.finish_reason, one.seed) == (
            other.token_ids,
            other.text,
            other.finish_reason,
            other.seed,
        )
        assert one.prompt_token_ids == other.prompt_token_ids
        for ours, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
            assert [token for token, _ in flat(ours)] == [token for token, _ in flat(theirs)]
            assert [value for _, value in flat(ours)] == pytest.approx(
                [value for _, value in flat(theirs)], abs=1e-5
            )


def name_of(setting: Setting) -> str:
    return f"{setting.mode}-{setting.length}"


def look_ups(got: Sequence[Outcome]) -> tuple[int, int]:
    """Hits and misses of all answers."""
    stats = [one.speculation for answer in got if isinstance(answer, Answer) for one in answer.every]
    return sum(one.hits for one in stats), sum(one.misses for one in stats)


def check_hits(setting: Setting, got: Sequence[Outcome]) -> None:
    """That nothing hit where nothing was to; how often else depends on the machine."""
    hits, _ = look_ups(got)
    assert setting.hits != "misses" or hits == 0


def toy_engine(overrides: list[str]) -> Engine:
    def load(name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
        return toy_decoder(1, vocab=VOCAB, quantizer=quantizer)

    return Engine(load_settings(None, overrides, {}), load_model=load)


def real_engine(overrides: list[str]) -> Engine:
    return Engine(load_settings(None, overrides, {}))


def test_any_two_values_meet() -> None:
    """In fewer rows than one for each pair of a value by far."""
    seen = set[tuple[tuple[str, str], ...]]().union(*map(pairs, ROWS))
    for one, other in itertools.combinations(FACTORS, 2):
        for a, b in itertools.product(FACTORS[one], FACTORS[other]):
            assert excluded((one, a), (other, b)) or ((one, repr(a)), (other, repr(b))) in seen
    assert len(ROWS) < 40


@pytest.fixture(scope="module")
def plain() -> list[Outcome]:
    return asyncio.run(outcomes(toy_engine, PLAIN))


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            setting,
            id=name_of(setting),
            marks=() if setting in QUICK else pytest.mark.slow,
        )
        for setting in SETTINGS
    ],
)
async def test_speculation_changes_nothing_that_a_client_sees(
    setting: Setting, plain: Sequence[Outcome]
) -> None:
    """On a toy model."""
    got = await outcomes(toy_engine, setting)
    for one, expected in zip(got, plain, strict=True):
        same(one, expected)
    if setting.mode == "ssd":
        check_hits(setting, got)


def test_hardly_a_request_is_impossible(plain: Sequence[Outcome]) -> None:
    """Nearly all have answers, and of very different kinds."""
    answers = [outcome for outcome in plain if isinstance(outcome, Answer)]
    assert len(answers) >= len(plain) - 2
    assert {answer.finish_reason for answer in answers} == {"stop", "length"}


@pytest.fixture(scope="module")
def real_plain() -> list[Outcome]:
    return asyncio.run(outcomes(real_engine, PLAIN, REAL))


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("setting", SETTINGS, ids=name_of)
async def test_speculation_changes_nothing_of_a_real_models_answers(
    setting: Setting, real_plain: Sequence[Outcome]
) -> None:
    """On SmolLM2, with the same requests and settings; how often it hits depends on the machine."""
    assert sum(isinstance(outcome, Answer) for outcome in real_plain) >= len(real_plain) - 2
    got = await outcomes(real_engine, setting, REAL)
    for one, expected in zip(got, real_plain, strict=True):
        same(one, expected)
    if setting.mode == "ssd":
        hits, misses = look_ups(got)
        assert (hits > 0) is (setting.hits != "misses")
        assert misses > 0 or setting.hits == "hits"

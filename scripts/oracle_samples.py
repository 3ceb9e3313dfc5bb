"""Are the engine's samples samples? Judged by transformers' model and its own warpers.

    python -m scripts.oracle_samples [--count 300] [--max-tokens 32] [--mode ssd] [--set key=value …]

Seeded answers at T = 0.9 and top-p 0.95; transformers reads each (teacher forcing), its warpers say what
each token's distribution was, and the randomised probability-integral transform (`pit.py`) judges all
tokens, and apart from one another those that were drawn where a cached draft was verified, where another
or none was, and behind an accepted proposal. Exit status 1 when a class fails, is empty though the mode
makes such tokens, or when a token was impossible.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from scripts.pit import ALL, BONUS, HIT, MISS, judge, origins, transform
from scripts.prompts import SHIPPED, Prompt, load_prompts
from scripts.reference import Reference
from ssd_runtime.app import Engine
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import read_trace
from ssd_runtime.types import Answer, Request, SamplingParams

TEMPERATURE, TOP_P = 0.9, 0.95
PREDICTABLE = ("engine.cache_policy=geometric", "engine.fallback=[ngram]")
"""Parts that choose outcomes without looking at noise of tokens to come: classes must be known beforehand."""
CLASSES = {
    "autoregressive": (MISS,),
    "speculative": (MISS, BONUS),
    "ssd": (HIT, MISS, BONUS),
    "hybrid": (),
}


async def sampled_answers(
    prompts: Sequence[Prompt], count: int, max_tokens: int, overrides: Sequence[str]
) -> tuple[list[Answer], dict[str, list[RoundRecord]]]:
    """`count` answers, seeds 0, 1, …, prompts in turn, and each answer's rounds from a trace."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        async with Engine.from_config(overrides=overrides, trace=trace) as engine:
            requests = [_request(seed, prompts[seed % len(prompts)], max_tokens) for seed in range(count)]
            answers = list(await asyncio.gather(*map(engine.complete, requests)))
        rounds: dict[str, list[RoundRecord]] = defaultdict(list)
        for record in read_trace(trace)[1]:
            rounds[record.request_id].append(record)
    return answers, rounds


def _request(seed: int, prompt: Prompt, max_tokens: int) -> Request:
    params = SamplingParams(temperature=TEMPERATURE, top_p=TOP_P, max_tokens=max_tokens, seed=seed)
    return Request(f"{seed}", prompt=prompt.text, params=params)


class Distributions:
    """What transformers says each token of an answer was drawn from."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self._warpers: list[Any] = [
            transformers.TemperatureLogitsWarper(TEMPERATURE),
            transformers.TopPLogitsWarper(TOP_P),
        ]

    def of(self, answer: Answer) -> NDArray[np.float64]:
        """Probabilities `[n, V]` of the n tokens of an answer."""
        read = torch.tensor([*answer.prompt_token_ids, *answer.token_ids[:-1]])
        scores = self._reference.logits(read.tolist(), len(answer.token_ids))
        for warp in self._warpers:
            scores = warp(read[None], scores)
        p: NDArray[np.float64] = scores.double().softmax(-1).numpy()
        return p


def transformed(
    answers: Sequence[Answer], rounds: dict[str, list[RoundRecord]], distributions: Distributions
) -> tuple[dict[str, list[list[float]]], list[str]]:
    """U of every token, by class and answer, and what was impossible or not accounted for."""
    uniforms = np.random.default_rng(0)
    classes: dict[str, list[list[float]]] = defaultdict(list)
    problems: list[str] = []
    for answer in answers:
        places = origins(rounds[answer.request_id])
        if len(places) != len(answer.token_ids):
            problems.append(f"answer {answer.request_id}: rounds do not add up to its tokens")
            continue
        found: dict[str, list[float]] = defaultdict(list)
        for index, p in enumerate(distributions.of(answer)):
            u = transform(answer.token_ids[index], p, uniforms)
            if u is None:
                problems.append(f"answer {answer.request_id}: token {index} has probability 0")
                continue
            found[ALL].append(u)
            found[places[index]].append(u)
        for name, values in found.items():
            classes[name].append(values)
    return classes, problems


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample, judge, report; the exit status."""
    options = _parser().parse_args(arguments)
    crowd = "engine.fallback_batch_threshold=100000"  # all are asked at once, and the mode is to be theirs
    overrides = [f"scheduler.policy={options.mode}", crowd, *PREDICTABLE, *options.set]
    name = Engine.from_config(overrides=overrides).settings.engine.model
    prompts = load_prompts(options.prompts)
    answers, rounds = asyncio.run(sampled_answers(prompts, options.count, options.max_tokens, overrides))
    classes, problems = transformed(answers, rounds, Distributions(Reference(name)))
    verdicts = [judge(kind, classes[kind]) for kind in (ALL, *CLASSES[options.mode])]
    sys.stdout.write(f"{options.mode}: {len(answers)} answers at T {TEMPERATURE}, top-p {TOP_P}\n")
    for line in (*(verdict.line() for verdict in verdicts), *problems):
        sys.stdout.write(line + "\n")
    sys.stdout.write(f"impossible tokens and other problems: {len(problems)}\n")
    return 0 if not problems and all(verdict.passes for verdict in verdicts) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", nargs="+", default=[str(SHIPPED)], metavar="FILE[:N]")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--mode", choices=sorted(CLASSES), default="autoregressive")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

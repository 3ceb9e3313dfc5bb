"""Speculation never changes the text: every mode, draft, K and batch against plain decoding.

    python -m scripts.sweep_equality --prompts FILE.jsonl:20 --max-tokens 128

Of every five prompts one is greedy, the others are sampled at temperatures 0.7 to 1.2 with top-p 0.9.
Prints a line per configuration; exit status 1 if any token differs. Takes long: about a minute each.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts import scripted_drafts
from scripts.prompts import SHIPPED, Prompt, load_prompts
from ssd_runtime.app import Engine
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Answer, Request, SamplingParams

TEMPERATURES = (0.0, 0.7, 0.9, 1.0, 1.2)
DRAFTS = ("self", "ngram", "wrong", "wavering", "oracle")
PLAIN = "autoregressive"
NO_BUDGET = 0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One point of the sweep; `budget` 0 forces every lookup to miss."""

    mode: str
    draft: str
    length: int
    batch: int
    budget: int = 8

    @property
    def overrides(self) -> list[str]:
        """The settings that make it so."""
        return [
            f"scheduler.policy={self.mode}",
            f"engine.draft_model={self.draft}",
            f"engine.speculative_length={self.length}",
            f"engine.max_batch_size={self.batch}",
            "engine.fallback_batch_threshold=1000",
            f"engine.branch_budget={self.budget}",
            "engine.fallback=[shadow, ngram]",
            "plugins=[scripts.scripted_drafts]",
        ]


def configurations(lengths: Sequence[int], batches: Sequence[int]) -> Iterator[Configuration]:
    """Every configuration that is compared with plain decoding at batch 1."""
    for batch in batches:
        if batch != 1:
            yield Configuration(PLAIN, "none", 1, batch)
        for length in lengths:
            for mode in ("speculative", "ssd"):
                for draft in DRAFTS[:-1]:
                    yield Configuration(mode, draft, length, batch)
            yield Configuration("ssd", "oracle", length, batch)
            yield Configuration("ssd", "self", length, batch, NO_BUDGET)


def requests(prompts: Sequence[Prompt], max_tokens: int) -> list[Request]:
    """The requests of the sweep, seeded by their place."""
    return [
        Request(
            id=prompt.id,
            prompt=prompt.text,
            params=SamplingParams(
                temperature=TEMPERATURES[index % len(TEMPERATURES)],
                top_p=0.9,
                max_tokens=max_tokens,
                seed=index,
            ),
        )
        for index, prompt in enumerate(prompts)
    ]


async def answers(configuration: Configuration, asked: Sequence[Request]) -> list[Answer]:
    """All answers under one configuration, as many at once as its batch holds."""
    loaded = load_settings(None, configuration.overrides, {})
    async with Engine(loaded) as engine:
        return await asyncio.gather(*(engine.complete(request) for request in asked))


def report(configuration: Configuration, plain: Sequence[Answer], got: Sequence[Answer]) -> dict[str, object]:
    """What is reported of one configuration."""
    different = [a.request_id for a, b in zip(plain, got, strict=True) if a.token_ids != b.token_ids]
    stats = [answer.speculation for answer in got]
    return {
        "mode": configuration.mode,
        "draft": configuration.draft,
        "K": configuration.length,
        "batch": configuration.batch,
        "budget": configuration.budget,
        "different": different,
        "tokens": sum(len(answer.token_ids) for answer in got),
        "rounds": sum(s.rounds for s in stats),
        "hits": sum(s.hits for s in stats),
        "misses": sum(s.misses for s in stats),
        "draft_tokens": sum(s.draft_tokens for s in stats),
        "accepted_tokens": sum(s.accepted_tokens for s in stats),
    }


async def sweep(options: argparse.Namespace) -> bool:
    """Run everything; whether every token was equal."""
    asked = requests(load_prompts(options.prompts or [str(SHIPPED)]), options.max_tokens)
    plain = await answers(Configuration(PLAIN, "none", 1, 1), asked)
    scripted_drafts.learn((*answer.prompt_token_ids, *answer.token_ids) for answer in plain)
    equal = True
    for configuration in configurations(options.lengths, options.batches):
        if configuration.draft not in options.drafts:
            continue
        started = time.perf_counter()
        row = report(configuration, plain, await answers(configuration, asked))
        row["seconds"] = round(time.perf_counter() - started, 1)
        equal = equal and not row["different"]
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return equal


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", action="append", metavar="FILE.jsonl[:N]", type=str)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--batches", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--drafts", nargs="+", default=["none", *DRAFTS], help="leave out the others")
    options = parser.parse_args()
    equal = asyncio.run(sweep(options))
    sys.stdout.write("equal everywhere\n" if equal else "DIFFERENT\n")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    sys.exit(main())

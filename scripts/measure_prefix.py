"""The first token of a second turn, warm and cold: with the first turn's KV in the prefix cache, and without.

    python -m scripts.measure_prefix [--repeats 7] [--sentences 40] [--mode hybrid] [--json FILE]

Two engines on one model, one with `engine.enable_prefix_caching`, one without. For each repetition the
first answers a first turn that nobody has seen before; then both answer the second turn, in turns who is
asked first. Ids must be the same; exit status 1 when they are not, or when warm takes more than --most of
cold (medians of the seconds from submission to first token).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from scripts.shared_models import TARGET_FORM, SharedModels
from ssd_runtime import __version__
from ssd_runtime.app import Engine
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Answer, Message, Request, SamplingParams

MOST = 0.3
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, seed=0)
SETTINGS = ("engine.max_batch_size=1", "scheduler.max_tokens=2048", "log.level=warning")


@dataclass(frozen=True)
class Turn:
    """A second turn: its tokens, those of them that were known, and the seconds to its first token."""

    prompt_tokens: int
    cached_tokens: int
    cold_seconds: float
    warm_seconds: float
    same_ids: bool


def report(number: int, sentences: int) -> str:
    """A text of so many sentences, another one for each number."""
    random = Random(number)
    lines = (f"Sensor {i} reads {random.randint(100, 999)} today." for i in range(sentences))
    return " ".join((f"This is report {random.random()}.", *lines, "What do you make of it?"))


async def second_turn(number: int, caching: Engine, plain: Engine, sentences: int) -> Turn:
    """One conversation, its second turn with both engines."""
    asked = (Message("user", report(number, sentences)),)
    first = await caching.complete(Request(f"{number}/first", messages=asked, params=PARAMS))
    follow_up = Message("user", "And in one word?")
    messages = (*asked, Message("assistant", first.text), follow_up)
    answers: dict[Engine, Answer] = {}
    for engine in (caching, plain) if number % 2 else (plain, caching):
        request = Request(f"{number}/second", messages=messages, params=PARAMS)
        answers[engine] = await engine.complete(request)
    warm, cold = answers[caching], answers[plain]
    return Turn(
        prompt_tokens=len(warm.prompt_token_ids),
        cached_tokens=warm.cached_tokens,
        cold_seconds=cold.timing.first_token_seconds,
        warm_seconds=warm.timing.first_token_seconds,
        same_ids=warm.token_ids == cold.token_ids,
    )


async def measure(options: argparse.Namespace) -> list[Turn]:
    """Every repetition; one more comes first and is not counted."""
    load_model = SharedModels().loader(TARGET_FORM)
    chosen = [*SETTINGS, f"scheduler.policy={options.mode}", *options.set]
    caching, plain = (
        Engine(load_settings(None, [*chosen, f"engine.enable_prefix_caching={on}"]), load_model=load_model)
        for on in ("true", "false")
    )
    async with caching, plain:
        turns = [
            await second_turn(number, caching, plain, options.sentences)
            for number in range(options.repeats + 1)
        ]
    return turns[1:]


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Medians, and what they make of each other."""
    cold = statistics.median(turn.cold_seconds for turn in turns)
    warm = statistics.median(turn.warm_seconds for turn in turns)
    return {"cold_seconds": cold, "warm_seconds": warm, "ratio": warm / cold}


def table(turns: Sequence[Turn], medians: dict[str, Any]) -> str:
    """The repetitions and the medians, in markdown."""
    lines = ["prompt | cached | cold, s | warm, s | warm / cold", "--- | --- | --- | --- | ---"]
    lines += [
        f"{turn.prompt_tokens} | {turn.cached_tokens} | {turn.cold_seconds:.3f} | {turn.warm_seconds:.3f} | "
        f"{turn.warm_seconds / turn.cold_seconds:.2f}"
        for turn in turns
    ]
    median = (
        f"median | | {medians['cold_seconds']:.3f} | {medians['warm_seconds']:.3f} | {medians['ratio']:.2f}"
    )
    return "\n".join(f"| {line} |" for line in (*lines, median))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report; the exit status."""
    options = _parser().parse_args(arguments)
    turns = asyncio.run(measure(options))
    medians = summary(turns)
    sys.stdout.write(table(turns, medians) + "\n")
    if options.json is not None:
        raw = {
            "version": __version__,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "load": os.getloadavg(),
            "options": {name: value for name, value in vars(options).items() if name != "json"},
            "turns": [asdict(turn) for turn in turns],
            **medians,
        }
        options.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    if not all(turn.same_ids for turn in turns):
        sys.stderr.write("the ids differ between warm and cold\n")
        return 1
    return 1 if medians["ratio"] > options.most else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--sentences", type=int, default=40, help="length of the first turn")
    parser.add_argument("--mode", default="hybrid", help="scheduler.policy of both engines")
    parser.add_argument("--most", type=float, default=MOST, help="of cold that warm may take")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

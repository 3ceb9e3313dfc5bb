"""What a long prompt that arrives costs those who decode: their gaps between pieces, before and meanwhile.

    python -m scripts.measure_arrival [--mode autoregressive] [--prompt-tokens 2000] [--rows 8] [--repeat 3]

Gaps in units of the median gap before the arrival; *next* is the gap in which it happened, the worst row's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from itertools import pairwise
from statistics import median, quantiles

from ssd_runtime.app import Engine
from ssd_runtime.clock import monotonic
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Request, SamplingParams

PROMPT = "Write a story about a ship, a storm and an island, and tell it slowly."
STEADY_PIECES = 24
WORD = 450


async def times_of(engine: Engine, request: Request, heard: list[float], steady: asyncio.Event) -> None:
    """Append the time of every piece to `heard`; `steady` is set when there are enough for a median."""
    async for _ in engine.generate(request):
        heard.append(monotonic())
        if len(heard) == STEADY_PIECES:
            steady.set()


def decoding(number: int, tokens: int) -> Request:
    """One of those who decode."""
    params = SamplingParams(temperature=0.8, seed=number, max_tokens=tokens, ignore_eos=True)
    return Request(f"row-{number}", prompt=f"{number}. {PROMPT}", params=params)


async def arrival(engine: Engine, options: argparse.Namespace, turn: int) -> list[float]:
    """The median gap before in ms, then in its units: next, median, P99 and worst gap while it is read."""
    heard: list[list[float]] = [[] for _ in range(options.rows)]
    steady = [asyncio.Event() for _ in heard]
    rows = [
        asyncio.create_task(times_of(engine, decoding(number, options.max_tokens), times, enough))
        for number, (times, enough) in enumerate(zip(heard, steady, strict=True))
    ]
    for enough in steady:
        await enough.wait()
    arrived = monotonic()
    ids = tuple(WORD + turn + i % 7 for i in range(options.prompt_tokens))
    await engine.complete(Request("long", prompt_token_ids=ids, params=SamplingParams(max_tokens=1)))
    read = monotonic()
    for row in rows:
        row.cancel()
    await asyncio.gather(*rows, return_exceptions=True)
    before = median(b - a for times in heard for a, b in pairwise(times[8:]) if b <= arrived)
    during = [b - a for times in heard for a, b in pairwise(times) if b > arrived and a < read]
    following = max(next(b - a for a, b in pairwise(times) if b > arrived) for times in heard)
    shown = (following, median(during), quantiles(during, n=100)[98], max(during))
    return [1e3 * before, *(gap / before for gap in shown), read - arrived]


async def measured(options: argparse.Namespace) -> list[list[float]]:
    """A line for each repetition; the first one, in which the engine learns its pace, is not counted."""
    overrides = [f"scheduler.policy={options.mode}", f"engine.max_batch_size={options.rows + 1}"]
    async with Engine(load_settings(None, overrides, {})) as engine:
        turns = [await arrival(engine, options, turn) for turn in range(options.repeat + 1)]
    return turns[1:]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--mode", default="autoregressive")
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=1500)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    sys.stdout.write("| gap before, ms | next | median | P99 | worst | seconds to read |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- |\n")
    for line in asyncio.run(measured(options)):
        sys.stdout.write(f"| {' | '.join(f'{value:.2f}' for value in line)} |\n")


if __name__ == "__main__":
    main()

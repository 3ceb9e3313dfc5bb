"""Many requests of every kind in too little memory, for long: does memory grow, does any text change?

    python -m scripts.soak [--requests 2000] [--mode hybrid] [--preempt-mode swap] [--all] [--json FILE]

One engine on the embedded model answers requests of mixed length, priority and parameters; a tenth of the
clients leave, and the KV cache holds a third of what a full batch wants. Resident memory is sampled every
--every seconds; its slope after --warm-up requests is given in percent of the mean per hour, with the 95 %
interval of a linear regression, widened by the residuals' own correlation. Then --check of the answers that
were awaited, chosen at random, or --all of them, are computed again, alone, in plain decoding.

Exit status 1 where an answer differs or failed, where anything is left behind, or where memory grows faster
than --growth (in a run with at least 20 samples).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from scripts.memory_slope import LEAST_SAMPLES, Sample, sample, slope, touch_all
from scripts.mixed_requests import Planned, plan
from scripts.shared_models import TARGET_FORM, SharedModels
from scripts.solo_answers import different, digest
from ssd_runtime import __version__
from ssd_runtime.app import Engine
from ssd_runtime.build import LoadModel
from ssd_runtime.engine.prepare import Limits, prepare_choices
from ssd_runtime.errors import RequestError, SSDError
from ssd_runtime.memory.heaps import tidy_heaps
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.schema import LogSettings
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.telemetry.log import configure_logging
from ssd_runtime.types import Answer

BATCH = 8
CLIENTS = 3 * BATCH
CONTEXT = 512
BLOCK = 16
SHARE = 1 / 3
"""Of what a full batch wants, what the KV cache holds."""
COMMON = ("scheduler.order=priority", f"scheduler.max_tokens={CONTEXT}")


@dataclass(slots=True)
class Soak:
    """What came of it. digests: of answers by index; errors: of requests whose client had not left.

    refused: requests whose parameters left no token possible somewhere, which is an answer too.
    """

    digests: dict[int, bytes] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    done: int = 0
    left: int = 0
    refused: int = 0
    tokens: int = 0


async def ask(engine: Engine, one: Planned) -> Answer | None:
    """The whole answer; None where the client left before."""
    if not one.leaves:
        return await engine.complete(one.request)
    try:
        async with asyncio.timeout(one.seconds), aclosing(engine.generate(one.request)) as pieces:
            left = one.pieces
            async for _ in pieces:
                left = None if left is None else left - 1
                if left == 0:
                    break
    except TimeoutError:
        pass
    return None


async def client(engine: Engine, planned: Iterator[tuple[int, Planned]], soak: Soak) -> None:
    """One request after the other, as long as there are some."""
    for index, one in planned:
        try:
            answer = await ask(engine, one)
        except RequestError as error:
            soak.digests[index] = digest(error)
            soak.refused += 1
        except SSDError as error:
            soak.errors.append(f"{one.request.id}: {error}")
        else:
            if answer is not None:
                soak.digests[index] = digest(answer)
                soak.tokens += sum(len(choice.token_ids) for choice in answer.every)
        soak.done += 1
        soak.left += one.leaves


async def watch(soak: Soak, every: float, told: Callable[[], str]) -> None:
    """Take a sample every so many seconds, and tell of it."""
    started = time.monotonic()
    while True:
        now = sample(time.monotonic() - started, soak.done)
        soak.samples.append(now)
        sys.stderr.write(f"{now.at:7.0f} s  {now.done:5} done  {now.resident / 2**20:7.1f} MiB  {told()}\n")
        await asyncio.sleep(every)


async def soaked(engine: Engine, planned: Sequence[Planned], every: float) -> Soak:
    """All requests, as many clients at a time as make a queue."""

    def told() -> str:
        now = engine.snapshot()
        return f"{now.running} run, {now.waiting} wait, {now.num_preemptions} preempted, mode {now.mode}"

    soak, queue = Soak(), iter(enumerate(planned))
    watching = asyncio.create_task(watch(soak, every, told))
    await asyncio.gather(*(client(engine, queue, soak) for _ in range(CLIENTS)))
    watching.cancel()
    return soak


async def settled(engine: Engine) -> EngineSnapshot:
    """The engine when everybody has left."""
    while engine.snapshot().requests:  # noqa: ASYNC110 - the engine's thread takes those who left out soon
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.0)
    return engine.snapshot()


def leftovers(now: EngineSnapshot) -> list[str]:
    """What an idle engine should not have."""
    found = {
        "blocks in use": now.used_blocks,
        "requests in host memory": now.swapped,
        "bytes of host memory": now.swap_usage,
        "wrong books": now.num_violations,
        "parts out of service": len(now.troubles),
        "restarts": sum(lane.num_restarts for lane in now.lanes.values()),
    }
    return [f"{number} {what}" for what, number in found.items() if number]


async def memory_wanted(planned: Sequence[Planned], load: LoadModel) -> tuple[int, int]:
    """Tokens of KV that a full batch of such requests wants on average, and those of the longest request."""
    settings = (*COMMON, "scheduler.policy=autoregressive", "engine.max_batch_size=1")
    async with Engine(load_settings(None, settings, {}), load_model=load) as engine:
        limits = Limits(CONTEXT, len(engine.tokenizer.tokens()))
        lengths = [
            sequence.max_len
            for one in planned
            for sequence, _ in prepare_choices(one.request, engine.tokenizer, limits)
        ]
    return round(BATCH * fmean(lengths)), max(lengths)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Soak, then check; everything that is reported."""
    load = SharedModels().loader(TARGET_FORM)
    planned = plan(options.requests, options.seed, *options.max_tokens)
    wanted, longest = await memory_wanted(planned, load)
    cache = BLOCK * -(-max(round(SHARE * wanted), longest) // BLOCK)
    settings = (
        *COMMON,
        f"scheduler.policy={options.mode}",
        f"scheduler.preempt_mode={options.preempt_mode}",
        f"engine.max_batch_size={BATCH}",
        f"engine.block_size={BLOCK}",
        f"engine.kv_cache_tokens={cache}",
        *options.set,
    )
    sys.stderr.write(f"{wanted} tokens of KV wanted, {cache} there\n")
    async with Engine(load_settings(None, settings, {}), load_model=load) as engine:
        touch_all()
        soak = await soaked(engine, planned, options.every)
        now = await settled(engine)
    count = len(soak.digests) if options.all else min(options.check, len(soak.digests))
    chosen = sorted(Random(options.seed).sample(sorted(soak.digests), count))
    grown = slope([one for one in soak.samples if one.done >= options.warm_up])
    return {
        "requests": soak.done,
        "left": soak.left,
        "refused": soak.refused,
        "tokens": soak.tokens,
        "kv_wanted": wanted,
        "kv_tokens": cache,
        "preemptions": now.num_preemptions,
        "swaps": now.num_swaps,
        "prefix_hits": now.prefix_hits,
        "rounds_by_mode": dict(now.rounds_by_mode),
        "growth": None if grown is None else asdict(grown),
        "samples": [asdict(one) for one in soak.samples],
        "errors": soak.errors,
        "leftovers": leftovers(now),
        "checked": count,
        "different": await different(
            [(planned[index].request, soak.digests[index]) for index in chosen], COMMON, load
        ),
    }


def summary(found: dict[str, Any]) -> str:
    """What a person wants to know."""
    growth, first, last = found["growth"], found["samples"][0], found["samples"][-1]
    grown = "too short for a slope"
    if growth is not None:
        grown = (
            f"{growth['percent']:+.2f} % an hour, 95 %: {growth['low']:+.2f} to {growth['high']:+.2f}, "
            f"from {growth['samples']} samples"
        )
    lines = (
        f"requests     {found['requests']}, of which {found['left']} were left, {found['refused']} refused; "
        f"{found['tokens']} tokens",
        f"KV           {found['kv_tokens']} tokens of {found['kv_wanted']} wanted; "
        f"{found['preemptions']} preemptions, {found['swaps']} of them swapped",
        f"rounds       {', '.join(f'{mode} {count}' for mode, count in found['rounds_by_mode'].items())}",
        f"memory       {grown}",
        f"threads      {first['threads']} to {last['threads']}; files {first['files']} to {last['files']}",
        f"errors       {len(found['errors'])}; left behind: {', '.join(found['leftovers']) or 'nothing'}",
        f"answers      {found['checked']} checked, {len(found['different'])} different",
        *(f"error        {error}" for error in found["errors"][:10]),
        *(f"different    {name}" for name in found["different"][:10]),
    )
    return "\n".join(lines) + "\n"


def is_good(found: dict[str, Any], most: float) -> bool:
    """Whether nothing is wrong; a slope of few samples says nothing."""
    growth = found["growth"]
    grows = growth is not None and growth["samples"] >= LEAST_SAMPLES and growth["percent"] > most
    return not (found["errors"] or found["leftovers"] or found["different"] or grows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak and report; the exit status."""
    options = _parser().parse_args(arguments)
    configure_logging(LogSettings(level="warning"))
    tidy_heaps()  # as `ssd-run` does
    found = asyncio.run(run(options))
    sys.stdout.write(summary(found))
    if options.json is not None:
        about = {
            "version": __version__,
            "cores": os.cpu_count(),
            "options": {name: value for name, value in vars(options).items() if name != "json"},
        }
        options.json.write_text(json.dumps(about | found, indent=1) + "\n", encoding="utf-8")
    return not is_good(found, options.growth)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0, help="of the requests and of the choice")
    parser.add_argument("--mode", default="hybrid", help="scheduler.policy")
    parser.add_argument("--preempt-mode", default="swap", choices=("swap", "recompute"))
    parser.add_argument("--max-tokens", type=int, nargs=2, default=(4, 192), metavar=("LEAST", "MOST"))
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two samples of memory")
    parser.add_argument("--warm-up", type=int, default=200, help="requests before memory is looked at")
    parser.add_argument(
        "--growth", type=float, default=2.0, help="percent that memory may grow by in an hour"
    )
    parser.add_argument("--check", type=int, default=200, help="answers that are computed again, alone")
    parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

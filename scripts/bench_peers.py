"""Ours, transformers and llama.cpp in turn on the same prompts: rates, and ratios with an interval.

    python -m scripts.bench_peers [--gguf FILE] [--llama-bench PATH] [--prompts FILE.jsonl[:N] …]
        [--modes hybrid,autoregressive] [--device-for-device] [--set KEY=VALUE …] [--threads N] [--json FILE]

A rate is a slope: tokens between the 16th and the 272nd new one, by the difference of two times. The
contenders follow each other on every prompt, backwards on every other one, and ratios are taken prompt
by prompt. A peer that is not there is skipped with a line that says so. See docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
from scipy.stats import bootstrap

from scripts.peers import (
    LlamaBatchedBench,
    LlamaBench,
    LlamaCppPython,
    MissingPeerError,
    Ours,
    Peer,
    Transformers,
    Work,
)
from scripts.prompts import SHIPPED, Prompt, load_prompts
from ssd_runtime.bench.plan import alternating
from ssd_runtime.bench.report import surroundings
from ssd_runtime.cli.bench import device_overrides
from ssd_runtime.device.cores import available_cores
from ssd_runtime.errors import SSDError
from ssd_runtime.models.loading import SourceKind, resolve
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Mode

CONFIDENCE = 0.95
Rates = dict[str, list[float]]
"""Tokens a second of each contender, one for each prompt."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How often as fast `ours` is as `peer`: the median over prompts, and its bootstrap interval.

    low and high are None for fewer than two prompts.
    """

    ours: str
    peer: str
    median: float
    low: float | None
    high: float | None


def measure(peers: Sequence[Peer], works: Sequence[Work], tell: Callable[[str], None]) -> Rates:
    """Every prompt by every peer in turn, the order turned round from one prompt to the next."""
    rates: Rates = {peer.name: [] for peer in peers}
    for turn, work in enumerate(works):
        for peer in alternating(peers, turn):
            rates[peer.name].append(peer.rate(work))
        last = ", ".join(f"{name} {found[-1]:.1f}" for name, found in rates.items())
        tell(f"{turn + 1} of {len(works)}, {', '.join(prompt.id for prompt in work.prompts)}: {last}")
    return rates


def ratio(rates: Rates, ours: str, peer: str) -> Ratio:
    """Ours by theirs, prompt by prompt."""
    pairs = np.array(rates[ours]) / np.array(rates[peer])
    if len(pairs) < 2:
        return Ratio(ours, peer, float(np.median(pairs)), None, None)
    found = bootstrap(
        (pairs,), np.median, confidence_level=CONFIDENCE, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return Ratio(ours, peer, float(np.median(pairs)), float(found.low), float(found.high))


def table(rates: Rates, ours: Sequence[str]) -> str:
    """The medians, and the ratio of each of ours to everybody else, in markdown."""
    lines = ["| | tokens/s | " + " | ".join(f"{name} by this" for name in ours) + " |"]
    lines.append("| --- " * (2 + len(ours)) + "|")
    for name, found in rates.items():
        cells = ["" if one == name else _cell(ratio(rates, one, name)) for one in ours]
        lines.append(f"| {name} | {median(found):.1f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: Ratio) -> str:
    interval = "" if found.low is None else f" ({found.low:.2f} to {found.high:.2f})"
    return f"{found.median:.2f}{interval}"


def gguf_file(options: argparse.Namespace, model: str) -> Path:
    """The file for llama.cpp: the one named, else our own model where that is one."""
    if options.gguf is not None:
        return Path(options.gguf)
    source = resolve(model)
    if source.kind is not SourceKind.GGUF or source.path is None:
        raise MissingPeerError(f"{model} is not a GGUF file; name one with --gguf")
    return source.path


def llama(options: argparse.Namespace, model: str) -> Peer:
    """llama.cpp in the form that is there."""
    gguf = gguf_file(options, model)
    if options.batch > 1:
        if options.llama_batched_bench is None:
            raise MissingPeerError("several prompts at once need --llama-batched-bench PATH")
        return LlamaBatchedBench(options.llama_batched_bench, gguf, options.threads)
    if options.llama_bench is not None:
        return LlamaBench(options.llama_bench, gguf, options.threads)
    return LlamaCppPython(gguf, options.threads)


def transformers(options: argparse.Namespace, model: str) -> Peer:
    """transformers, for one prompt at a time."""
    if options.batch > 1:
        raise MissingPeerError("it takes part with one prompt at a time only")
    return Transformers(model, options.threads)


def works_of(
    prompts: Sequence[Prompt], prompt_ids: Sequence[tuple[int, ...]], options: argparse.Namespace
) -> list[Work]:
    """As many prompts at once as asked for; what is left over at the end is left out."""
    starts = range(0, len(prompts) - options.batch + 1, options.batch)
    ends = [(start, start + options.batch) for start in starts]
    return [Work(tuple(prompts[a:b]), tuple(prompt_ids[a:b]), *options.tokens) for a, b in ends]


def present(makers: dict[str, Callable[[], Peer]], tell: Callable[[str], None]) -> list[Peer]:
    """The peers that can be made; the others are named."""
    found = []
    for name, make in makers.items():
        try:
            found.append(make())
        except (SSDError, ImportError) as error:
            tell(f"{name}: skipped, {error}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, compare, report; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        rates, ours = run(options)
    except SSDError as error:
        _tell(f"bench_peers: {error}")
        return 1
    sys.stdout.write(table(rates, ours) + "\n")
    if options.json is not None:
        _write(options, rates, ours)
    return 0


def modes(text: str) -> list[Mode]:
    """Modes separated by commas. Raises `ValueError`."""
    return [Mode(name) for name in text.split(",")]


def overrides_of(options: argparse.Namespace, overrides: Sequence[str], mode: Mode) -> Sequence[str]:
    """The settings of ours in one mode. Raises `ConfigError`."""
    return device_overrides(None, overrides, mode) if options.device_for_device else overrides


def ours_in(mode: Mode, overrides: Sequence[str]) -> Ours:
    """Ours in one mode."""
    return Ours(mode, [part for override in overrides for part in ("--set", override)])


def run(options: argparse.Namespace) -> tuple[Rates, list[str]]:
    """Everybody's rates, and which of them are ours. Raises `SSDError`."""
    named = [f"engine.model={options.gguf}"] if options.gguf else []
    overrides = [*named, *options.set]
    model = load_settings(None, overrides).settings.engine.model
    prompts = load_prompts(options.prompts)
    if len(prompts) < options.batch:
        raise SSDError(f"--batch {options.batch}: there are only {len(prompts)} prompts")
    makers: dict[str, Callable[[], Peer]] = {
        "transformers": lambda: transformers(options, model),
        "llama.cpp": lambda: llama(options, model),
    }
    chosen = {name: makers[name] for name in makers if name in options.peers.split(",")}
    ours_are = [(mode, overrides_of(options, overrides, mode)) for mode in options.modes]
    with ExitStack() as stack:
        ours = [stack.enter_context(closing(ours_in(*placed))) for placed in ours_are]
        others = [stack.enter_context(closing(peer)) for peer in present(chosen, _tell)]
        works = works_of(prompts, [ours[0].prompt_ids(prompt) for prompt in prompts], options)
        for peer in [*ours, *others]:  # the first answer of an engine allocates and compiles
            peer.rate(replace(works[0], short=1, long=9))
        return measure([*ours, *others], works, _tell), [one.name for one in ours]


def _write(options: argparse.Namespace, rates: Rates, ours: Sequence[str]) -> None:
    asked = {name: value for name, value in vars(options).items() if name != "json"}
    ratios = [asdict(ratio(rates, one, name)) for one in ours for name in rates if name != one]
    data = {"surroundings": surroundings() | {"options": asked}, "rates": rates, "ratios": ratios}
    options.json.write_text(json.dumps(data, indent=1, default=str) + "\n", encoding="utf-8")


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--gguf", type=Path, help="the file for llama.cpp, and for us unless --set names another"
    )
    parser.add_argument("--llama-bench", type=Path, metavar="PATH", help="llama.cpp's own tool")
    parser.add_argument("--prompts", nargs="+", default=[str(SHIPPED)], metavar="FILE[:N]")
    parser.add_argument("--llama-batched-bench", type=Path, metavar="PATH", help="the same, for --batch")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="prompts answered at once")
    parser.add_argument("--modes", type=modes, default="hybrid", help="ours, separated by commas")
    parser.add_argument("--device-for-device", action="store_true", help="as for `ssd-run bench`")
    parser.add_argument("--peers", default="transformers,llama.cpp", help="theirs, separated by commas")
    parser.add_argument("--tokens", nargs=2, type=int, default=[16, 272], metavar=("SHORT", "LONG"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--threads", type=int, default=len(available_cores()), help="the peers' threads")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""One table: what each mode and draft gives on this machine, and how fast.

    python -m scripts.measure_modes [--prompts FILE.jsonl[:N] …] [--max-tokens 128] [--json FILE]

Every prompt is answered alone by each engine in turn, so that whatever else the machine does meets all
of them alike. Ids must be the same everywhere; exit status 1 when they are not. By default device for
device: the target has core 0 in every mode, the draft core 1.

The ceiling is 1/T_draft: a chain of draft passes yields one token a pass, so on hits no engine can be
faster. T_draft is the median pass within the builds of `ssd`: beside the target, over several branches.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import torch

from scripts.contender import Contender
from scripts.prompts import SHIPPED, Prompt, load_prompts
from scripts.shared_models import DRAFTS, TARGET_FORM, SharedModels, quantization_of
from ssd_runtime import __version__
from ssd_runtime.app import Engine
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Request, SamplingParams

TEMPERATURES = (0.0, 1.0)
PLACEMENT = ("placement.target=cpu:0", "placement.draft=cpu:1")
WARM_UP_TOKENS = 8
COLUMNS = {
    "temperature": "T",
    "mode": "mode",
    "draft": "draft",
    "tokens_per_round": "tokens/round",
    "acceptance": "acceptance",
    "hit_rate": "hit rate",
    "length_on_hits": "length on hits",
    "draft_bytes_share": "draft/target bytes",
    "tokens_per_second": "tokens/s",
    "times_plain": "× plain",
    "draft_pass_ms": "draft pass, ms",
    "ceiling": "1/T_draft, tokens/s",
    "ids": "ids",
}


def contenders(options: argparse.Namespace, folder: Path, models: SharedModels) -> list[Contender]:
    """Plain decoding once, the other modes once for each draft."""
    pairs = [("autoregressive", TARGET_FORM)]
    pairs += [(mode, draft) for draft in options.drafts for mode in ("speculative", "ssd")]
    made = []
    for mode, draft in pairs:
        trace = folder / f"{mode}-{draft}.json"
        fixed = [*PLACEMENT, f"engine.speculative_length={options.length}", f"scheduler.policy={mode}"]
        if draft != TARGET_FORM:
            fixed += ["engine.draft_model=self", f"engine.draft_quantization={quantization_of(draft)}"]
        loaded = load_settings(None, [*fixed, *options.set])
        engine = Engine(loaded, trace=trace, load_model=models.loader(draft))
        made.append(Contender(mode, draft, engine, trace))
    return made


async def answer_all(found: Sequence[Contender], prompts: Sequence[Prompt], max_tokens: int) -> None:
    """Every prompt by every contender in turn, the order rotated, at every temperature."""
    async with AsyncExitStack() as stack:
        for contender in found:
            await stack.enter_async_context(contender.engine)
            await contender.engine.complete(_request("warm-up", prompts[0], 1.0, WARM_UP_TOKENS, 0))
        for seed, prompt in enumerate(prompts):
            for temperature in TEMPERATURES:
                name = f"{temperature}/{prompt.id}"
                request = _request(name, prompt, temperature, max_tokens, seed)
                first = seed % len(found)
                for contender in (*found[first:], *found[:first]):
                    await contender.answer(temperature, request)


def _request(name: str, prompt: Prompt, temperature: float, max_tokens: int, seed: int) -> Request:
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    return Request(name, prompt=prompt.text, params=params)


def rows_of(found: Sequence[Contender], models: SharedModels) -> list[dict[str, Any]]:
    """The table as raw numbers; None where there is nothing to count."""
    rows = []
    for temperature in TEMPERATURES:
        plain = found[0].tokens_per_second(temperature)
        for contender in found:
            row = contender.measured(temperature, models)
            rows.append(row | {"times_plain": row["tokens_per_second"] / plain})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows in markdown."""
    lines = [" | ".join(COLUMNS.values()), " | ".join("---" for _ in COLUMNS)]
    lines += [" | ".join(_cell(row[name]) for name in COLUMNS) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def differing(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The temperatures at which not all contenders gave the same ids."""
    return [
        f"T {temperature:g}: the ids differ between modes or drafts"
        for temperature in TEMPERATURES
        if len({row["ids"] for row in rows if row["temperature"] == temperature}) > 1
    ]


def surroundings(options: argparse.Namespace) -> dict[str, Any]:
    """What the numbers depend on."""
    return {
        "version": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "options": {name: value for name, value in vars(options).items() if name != "json"},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer, measure, report; the exit status."""
    options = _parser().parse_args(arguments)
    prompts = load_prompts(options.prompts)
    with tempfile.TemporaryDirectory() as folder:
        models = SharedModels()
        found = contenders(options, Path(folder), models)
        asyncio.run(answer_all(found, prompts, options.max_tokens))
        rows = rows_of(found, models)
    problems = differing(rows)
    sys.stdout.write(table(rows) + "\n" + "".join(f"{problem}\n" for problem in problems))
    if options.json is not None:
        raw = {"surroundings": surroundings(options), "rows": rows}
        options.json.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", nargs="+", default=[str(SHIPPED)], metavar="FILE[:N]")
    parser.add_argument("--drafts", nargs="+", default=list(DRAFTS), metavar="FORMAT[:LAYERS]")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--length", type=int, default=4, metavar="K")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

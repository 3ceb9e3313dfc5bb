"""What the shared noise buys: coupled sampling beside the ratio rule, on the same logits.

    python -m scripts.measure_coupling [--prompts FILE.jsonl[:N] …] [--max-tokens 64] [--json FILE]

The target answers every prompt at every temperature; target and draft then read these answers, and at
each position both rules are applied to their two distributions. Rounds are walked along the answers,
with K drafts in every round: what a draft could do that is always ready. At temperature 0 the two rules
are one. No truncation (top-p 1).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from scripts.coupling import Chances, Rounds, coupled, ratio, ratio_given, walk
from scripts.prompts import SHIPPED, Prompt, load_prompts
from scripts.shared_models import DRAFTS, TARGET_FORM, SharedModels, quantization_of
from ssd_runtime.app import Engine
from ssd_runtime.build import no_progress
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.messages import Draw, ForwardRow
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.settings.load import load_settings
from ssd_runtime.types import Answer, Request, SamplingParams

TEMPERATURES = (0.0, 0.4, 0.7, 1.0)
BLOCK = 16
RULES = ("ratio", "coupled")
COLUMNS = {
    "tokens_per_round": "tokens/round",
    "hit_rate": "hit rate",
    "accept": "accept",
    "caught": "bonus in top-F after a rejection",
    "free": "bonus in top-F after all accepted",
}


@dataclass(frozen=True, slots=True)
class Place:
    """One position of one answer: its token, and the logits `[V]` of target and draft."""

    token: int
    position: int
    target: Tensor
    draft: Tensor


async def target_answers(
    prompts: Sequence[Prompt], options: argparse.Namespace, models: SharedModels
) -> dict[float, list[Answer]]:
    """The target's own answers at each temperature."""
    loaded = load_settings(None, ["scheduler.policy=autoregressive", *options.set])
    async with Engine(loaded, load_model=models.loader(TARGET_FORM)) as engine:
        found = {}
        for temperature in TEMPERATURES:
            requests = [
                _request(seed, prompt, temperature, options.max_tokens) for seed, prompt in enumerate(prompts)
            ]
            found[temperature] = list(await asyncio.gather(*map(engine.complete, requests)))
    return found


def _request(seed: int, prompt: Prompt, temperature: float, max_tokens: int) -> Request:
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
    return Request(f"{temperature}/{prompt.id}", prompt=prompt.text, params=params)


def places(answer: Answer, target: Decoder, draft: Decoder) -> list[Place]:
    """Both models read the answer, teacher-forced."""
    read = [*answer.prompt_token_ids, *answer.token_ids[:-1]]
    count, first = len(answer.token_ids), len(answer.prompt_token_ids)
    logits = [_logits(decoder, read, count) for decoder in (target, draft)]
    return [
        Place(token, first + index, logits[0][index], logits[1][index])
        for index, token in enumerate(answer.token_ids)
    ]


def _logits(decoder: Decoder, token_ids: Sequence[int], count: int) -> Tensor:
    num_blocks = -(-len(token_ids) // BLOCK)
    row = ForwardRow(token_ids, 0, range(num_blocks), count)
    return decoder.forward([row], decoder.new_kv(num_blocks, BLOCK))


class Comparison:
    """Both rules at one temperature with one draft, summed over answers."""

    def __init__(self, temperature: float, options: argparse.Namespace) -> None:
        self._temperature = temperature
        self._draws = options.draws if temperature else 1
        self._fan_out, self._length = options.fan_out, options.length
        self._uniforms = np.random.default_rng(0)
        self._count = 0
        self._chances = dict.fromkeys(RULES, Chances())
        self._rounds = dict.fromkeys(RULES, Rounds())

    def add(self, answer: Answer, found: Sequence[Place]) -> None:
        """Take one answer into account. Its own noise serves the walk, other seeds' too the chances."""
        own = [self._coupled(answer.seed, place) for place in found]
        others = (
            self._coupled(answer.seed + draw, place) for draw in range(1, self._draws) for place in found
        )
        self._count += len(found)
        self._chances["coupled"] += sum((*own, *others), Chances()) / self._draws
        self._rounds["coupled"] += walk(own, self._length)
        exact, walked = zip(*self._ratio(own, found), strict=True)
        self._chances["ratio"] += sum(exact, Chances())
        self._rounds["ratio"] += walk(walked, self._length)

    def results(self) -> dict[str, dict[str, float | None]]:
        """The table's columns, for each rule."""
        return {rule: self._result(self._chances[rule] / self._count, self._rounds[rule]) for rule in RULES}

    def _result(self, mean: Chances, rounds: Rounds) -> dict[str, float | None]:
        return {
            "tokens_per_round": rounds.tokens / rounds.count if rounds.count else None,
            "hit_rate": rounds.hits / rounds.count if rounds.count else None,
            "accept": mean.accept,
            "caught": mean.caught_if_rejected,
            "free": mean.free,
            "positions": self._count,
            "rounds": rounds.count,
        }

    def _coupled(self, seed: int, place: Place) -> Chances:
        draw = Draw(seed, self._temperature)
        return coupled(place.target, place.draft, draw, place.position, self._fan_out)

    def _ratio(self, own: Sequence[Chances], found: Sequence[Place]) -> Iterator[tuple[Chances, Chances]]:
        """The exact chances of each place, and one draw that agrees with the answer."""
        for same, place in zip(own, found, strict=True):
            if self._temperature == 0:
                yield same, same
                continue
            p, q = (
                (logits.double() / self._temperature).softmax(-1) for logits in (place.target, place.draft)
            )
            given = ratio_given(place.token, p, q, self._fan_out, self._uniforms)
            yield ratio(p, q, self._fan_out), given


def compare_all(
    answers: dict[float, list[Answer]], options: argparse.Namespace, models: SharedModels
) -> list[dict[str, Any]]:
    """One entry for each draft and temperature."""
    manager = PluginManager()
    manager.load([])
    name = load_settings(None, options.set).settings.engine.model
    decoders = {}
    for form in (TARGET_FORM, *options.drafts):
        quantizer = manager.registries.quantizers.get(quantization_of(form))()
        decoders[form] = models.loader(form)(name, quantizer, no_progress).decoder
    rows = []
    for draft in options.drafts:
        for temperature in TEMPERATURES:
            comparison = Comparison(temperature, options)
            for answer in answers[temperature]:
                comparison.add(answer, places(answer, decoders[TARGET_FORM], decoders[draft]))
            rows.append({"draft": draft, "temperature": temperature, **comparison.results()})
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown; each cell is ratio / coupled."""
    lines = [
        " | ".join(("draft", "T", *COLUMNS.values())),
        " | ".join("---" for _ in range(len(COLUMNS) + 2)),
    ]
    for row in rows:
        cells = [" / ".join(_number(row[rule][name]) for rule in RULES) for name in COLUMNS]
        lines.append(" | ".join((row["draft"], f"{row['temperature']:g}", *cells)))
    return "\n".join(f"| {line} |" for line in lines)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer, read, compare; always 0."""
    options = _parser().parse_args(arguments)
    models = SharedModels()
    answers = asyncio.run(target_answers(load_prompts(options.prompts), options, models))
    rows = compare_all(answers, options, models)
    sys.stdout.write("each cell: ratio rule / coupled\n\n" + table(rows) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", nargs="+", default=[str(SHIPPED)], metavar="FILE[:N]")
    parser.add_argument("--drafts", nargs="+", default=list(DRAFTS), metavar="FORMAT[:LAYERS]")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--length", type=int, default=4, metavar="K")
    parser.add_argument("--fan-out", type=int, default=4, metavar="F")
    parser.add_argument("--draws", type=int, default=6, help="noises tried at each position")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

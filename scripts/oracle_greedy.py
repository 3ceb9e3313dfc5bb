"""Greedy answers of the engine against transformers' `generate` on the same float32 weights.

    python -m scripts.oracle_greedy --prompts FILE.jsonl[:N] … [--mode ssd] [--set key=value …]

Ids must be equal up to a first difference at which transformers' own two best logits lie within 1e-3.
The decoder's logits on every prompt must lie within 1e-4 of transformers', or at least be as near to
the exact ones (transformers in float64) as its float32 is, up to a factor of 1.5: logits near 40 have
a last bit of 4e-6, and thirty layers round some twenty times that much away in any order of summation.
One line a prompt, a summary; exit status 1 when something differs.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.prompts import SHIPPED, Prompt, load_prompts
from scripts.reference import Reference
from ssd_runtime.app import Engine
from ssd_runtime.build import load_configured_model, no_progress
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.types import Answer, Request, SamplingParams

NEAR_TIE = 1e-3
"""Where transformers' own two best logits are this close, rounding decides between them."""
LOGIT_TOLERANCE = 1e-4
ROUNDING_FACTOR = 1.5
BLOCK = 16


@dataclass(frozen=True, slots=True)
class LogitErrors:
    """Largest absolute differences of any logit on one prompt.

    apart: the decoder from transformers, both in float32. ours, theirs: each from transformers in float64.
    """

    apart: float
    ours: float
    theirs: float

    @property
    def passes(self) -> bool:
        """Within the tolerance, or as exact as transformers itself."""
        return self.apart <= LOGIT_TOLERANCE or self.ours <= ROUNDING_FACTOR * self.theirs

    def __str__(self) -> str:
        return f"logits {self.apart:.1e} apart (from exact: ours {self.ours:.1e}, theirs {self.theirs:.1e})"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's outcome. first_difference: index of the first id that differs, None if none does.

    gap: the distance of transformers' two best logits there.
    """

    prompt: Prompt
    num_tokens: int
    same_prompt: bool
    first_difference: int | None
    gap: float
    logits: LogitErrors

    @property
    def ids_agree(self) -> bool:
        """Whether the prompt's and the answer's ids are equal, or differ first at a near tie."""
        return self.same_prompt and (self.first_difference is None or self.gap <= NEAR_TIE)

    @property
    def passes(self) -> bool:
        """Whether ids and logits agree."""
        return self.ids_agree and self.logits.passes

    def line(self) -> str:
        """The outcome as a line of the report."""
        if not self.same_prompt:
            ids = "prompt ids differ"
        elif self.first_difference is None:
            ids = f"{self.num_tokens} ids equal"
        else:
            ids = f"first difference at {self.first_difference} of {self.num_tokens}, gap {self.gap:.1e}"
        verdict = "ok  " if self.passes else "FAIL"
        return f"{verdict} {self.prompt.id}: {ids}; {self.logits}"


async def engine_answers(
    prompts: Sequence[Prompt], max_tokens: int, overrides: Sequence[str]
) -> list[Answer]:
    """The engine's greedy answers, all requested at once."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    async with Engine.from_config(overrides=overrides) as engine:
        requests = [Request(prompt.id, prompt=prompt.text, params=params) for prompt in prompts]
        return list(await asyncio.gather(*map(engine.complete, requests)))


def compare(
    prompt: Prompt, answer: Answer, max_tokens: int, model: LoadedModel, reference: Reference
) -> Comparison:
    """Hold one greedy answer of up to `max_tokens`, and the logits on its prompt, against transformers."""
    prompt_ids = reference.prompt_ids(prompt.text)
    expected = reference.greedy(prompt_ids, max_tokens, model.tokenizer.eos_token_ids)
    difference = first_difference(answer.token_ids, expected)
    gap = 0.0
    if difference is not None:
        after = reference.logits([*prompt_ids, *expected[:difference]], 1)[0].topk(2).values
        gap = float(after[0] - after[1])
    return Comparison(
        prompt,
        len(answer.token_ids),
        prompt_ids == list(answer.prompt_token_ids),
        difference,
        gap,
        logit_errors(prompt_ids, model, reference),
    )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first index at which two answers differ; the shorter's length where one ends early."""
    for index, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return index
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def logit_errors(token_ids: Sequence[int], model: LoadedModel, reference: Reference) -> LogitErrors:
    """How far the logits after each of `token_ids` are apart, and from the exact ones."""
    num_blocks = -(-len(token_ids) // BLOCK)
    row = ForwardRow(token_ids, 0, range(num_blocks), len(token_ids))
    ours = model.decoder.forward([row], model.decoder.new_kv(num_blocks, BLOCK))
    theirs, exact = reference.logits(token_ids, len(token_ids)), reference.exact_logits(token_ids)
    return LogitErrors(
        *(float((a - b).abs().max()) for a, b in ((ours, theirs), (ours, exact), (theirs, exact)))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare every prompt; the exit status."""
    options = _parser().parse_args(arguments)
    prompts = load_prompts(options.prompts)
    crowd = "engine.fallback_batch_threshold=100000"  # all are asked at once, and the mode is to be theirs
    overrides = [f"scheduler.policy={options.mode}", crowd, *options.set]
    name = Engine.from_config(overrides=overrides).settings.engine.model
    answers = asyncio.run(engine_answers(prompts, options.max_tokens, overrides))
    model, reference = load_configured_model(name, Float32Quantizer(), no_progress), Reference(name)
    results = []
    for prompt, answer in zip(prompts, answers, strict=True):
        results.append(compare(prompt, answer, options.max_tokens, model, reference))
        sys.stdout.write(results[-1].line() + "\n")
        sys.stdout.flush()
    sys.stdout.write(summary(options.mode, results) + "\n")
    return 0 if all(result.passes for result in results) else 1


def summary(mode: str, results: Sequence[Comparison]) -> str:
    """The report's last line."""
    equal = sum(result.same_prompt and result.first_difference is None for result in results)
    ties = sum(result.ids_agree for result in results) - equal
    worst = max((result.logits for result in results), key=lambda errors: errors.apart)
    return (
        f"{mode}: {len(results)} prompts, {sum(result.num_tokens for result in results)} tokens: "
        f"{equal} equal, {ties} up to a near tie, {len(results) - equal - ties} different; "
        f"worst {worst}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--prompts", nargs="+", default=[str(SHIPPED)], metavar="FILE[:N]")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--mode", default="autoregressive")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Runs a bench: every turn in its order, every answer checked, and the rows in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ssd_runtime.bench.answering import Block, Pass
from ssd_runtime.bench.ids import IdsCheck
from ssd_runtime.bench.plan import Cell, Turn, turns
from ssd_runtime.bench.prompts import Prompt
from ssd_runtime.bench.rows import Row, Sample, row
from ssd_runtime.settings.request import derive_seed
from ssd_runtime.types import Mode, Request, SamplingParams

Progress = Callable[[str, int, int], None]


class Contender(Protocol):
    """A mode that answers. cores: which cores it may use, for the column."""

    @property
    def name(self) -> str: ...
    @property
    def cores(self) -> str: ...
    async def answer(self, block: Block) -> Pass: ...


@dataclass(frozen=True, slots=True)
class Results:
    """What a bench gave: its rows, and for each row the samples that it was made from."""

    rows: list[Row] = field(default_factory=list)
    samples: list[list[Sample]] = field(default_factory=list)


async def run_bench(
    contenders: Sequence[Contender],
    cells: Sequence[Cell],
    params: SamplingParams,
    *,
    seed: int,
    repeat: int,
    progress: Progress,
    one_text: bool = True,
) -> Results:
    """Measure every contender in every cell. Raises `IdsDifferError`, and what an engine raises.

    params: everything but temperature and seed, which are the cell's and the prompt's own. one_text:
    whether a seed gives the same ids in every mode, which is then checked above temperature 0 too.
    """
    check, results = IdsCheck(sampled_too=one_text), Results()
    done, total = 0, sum(len(list(turns(cell, len(contenders), repeat))) for cell in cells)
    for cell in cells:
        samples: dict[int, list[Sample]] = defaultdict(list)
        for turn in turns(cell, len(contenders), repeat):
            contender = contenders[turn.contender]
            progress(f"{contender.name}, {cell}", done, total)
            result = await contender.answer(block_of(turn, params, seed))
            check.check(turn, contender.name, result)
            samples[turn.contender].append(_sample(turn, len(contenders), result))
            done += 1
        _conclude(results, cell, contenders, samples, check)
    return results


def block_of(turn: Turn, params: SamplingParams, seed: int) -> Block:
    """The requests of one turn; a prompt has the same seed in every mode, batch and repetition."""
    cell = turn.cell
    seeds = {prompt.id: derive_seed(seed, index) for index, prompt in enumerate(cell.prompts.prompts)}
    params = replace(params, temperature=cell.temperature)
    requests = tuple(
        request_of(prompt, replace(params, seed=seeds[prompt.id])) for prompt in cell.blocks()[turn.block]
    )
    return Block(requests, cell.batch)


def request_of(prompt: Prompt, params: SamplingParams) -> Request:
    """One prompt as a request of the same id."""
    return Request(prompt.id, prompt=prompt.text, raw=prompt.raw, params=params)


def _sample(turn: Turn, contenders: int, result: Pass) -> Sample:
    backwards = (turn.repetition + turn.block) % 2
    place = contenders - 1 - turn.contender if backwards else turn.contender
    return Sample(turn.repetition, turn.block, place, result)


def _conclude(
    results: Results,
    cell: Cell,
    contenders: Sequence[Contender],
    samples: dict[int, list[Sample]],
    check: IdsCheck,
) -> None:
    """Add the rows of a cell that is done."""
    plain = [samples[i] for i, one in enumerate(contenders) if one.name == Mode.AUTOREGRESSIVE]
    ids = check.digest(cell.prompts.name, cell.temperature)
    for index, contender in enumerate(contenders):
        made = row(cell, contender.name, contender.cores, samples[index], plain[0] if plain else (), ids)
        results.rows.append(made)
        results.samples.append(samples[index])

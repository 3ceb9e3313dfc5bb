"""What is run, and in which order: every mode on every block of prompts, forwards and backwards.

Machines drift: clocks fall as a chip warms up, neighbours come and go. So the modes take turns block by
block, and the order is turned round from one block to the next and from one repetition to the next
(A B C, C B A, …): what drifts slowly meets all modes alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ssd_runtime.bench.prompts import Prompt, PromptSet

BLOCK_ROUNDS = 4
"""A block has this many prompts for each request in flight, so that few of them wait for the last."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Cell:
    """One condition under which all modes are compared."""

    prompts: PromptSet
    temperature: float
    batch: int

    def __str__(self) -> str:
        return f"{self.prompts.name}, T {self.temperature:g}, batch {self.batch}"

    def blocks(self) -> list[tuple[Prompt, ...]]:
        """The prompts in pieces that one mode answers before the next one has its turn."""
        prompts, size = self.prompts.prompts, BLOCK_ROUNDS * self.batch
        return [prompts[start : start + size] for start in range(0, len(prompts), size)]


@dataclass(frozen=True, slots=True)
class Turn:
    """One block for one contender, which is given by its index."""

    cell: Cell
    repetition: int
    block: int
    contender: int


def cells(sets: Sequence[PromptSet], temperatures: Sequence[float], batches: Sequence[int]) -> list[Cell]:
    """Every combination, in the order of the table."""
    return [Cell(prompts, t, batch) for prompts in sets for t in temperatures for batch in batches]


def turns(cell: Cell, contenders: int, repeat: int) -> Iterator[Turn]:
    """Everything that is run for one cell, in its order."""
    for repetition in range(repeat):
        for block in range(len(cell.blocks())):
            for contender in alternating(range(contenders), repetition + block):
                yield Turn(cell, repetition, block, contender)


def alternating(items: Sequence[T], turn: int) -> list[T]:
    """The items as they stand on even turns, backwards on odd ones."""
    return list(items) if turn % 2 == 0 else list(reversed(items))

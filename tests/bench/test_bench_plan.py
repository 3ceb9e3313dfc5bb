"""Who has a turn when: every mode on every block, forwards and backwards."""

from __future__ import annotations

import pytest

from ssd_runtime.bench.plan import BLOCK_ROUNDS, Cell, alternating, cells, turns
from ssd_runtime.bench.prompts import Prompt, PromptSet


def prompt_set(count: int) -> PromptSet:
    return PromptSet("set", tuple(Prompt(str(i), f"text {i}") for i in range(count)))


def test_two_repetitions_of_one_block_are_abba() -> None:
    """The order that cancels a drift which grows evenly."""
    order = [turn.contender for turn in turns(Cell(prompt_set(1), 0.0, 1), contenders=2, repeat=2)]
    assert order == [0, 1, 1, 0]


def test_the_order_turns_round_from_block_to_block_and_within_a_block_from_time_to_time() -> None:
    """Three blocks, two repetitions: each block is run in both orders."""
    found = list(turns(Cell(prompt_set(2 * BLOCK_ROUNDS + 1), 0.0, 1), contenders=3, repeat=2))
    orders: dict[tuple[int, int], list[int]] = {}
    for turn in found:
        orders.setdefault((turn.repetition, turn.block), []).append(turn.contender)
    up, down = [0, 1, 2], [2, 1, 0]
    assert list(orders.values()) == [up, down, up, down, up, down]


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_blocks_are_the_prompts_in_order(batch: int) -> None:
    """Each prompt once, and enough of them in a block to keep `batch` in flight."""
    blocks = Cell(prompt_set(30), 0.0, batch).blocks()
    assert [prompt.id for block in blocks for prompt in block] == [str(i) for i in range(30)]
    assert {len(block) for block in blocks[:-1]} <= {BLOCK_ROUNDS * batch}


def test_cells_are_every_combination_in_the_order_of_the_table() -> None:
    """Prompt set, then temperature, then batch."""
    found = cells([prompt_set(1)], [0.0, 1.0], [1, 4])
    assert [str(cell) for cell in found] == [
        "set, T 0, batch 1",
        "set, T 0, batch 4",
        "set, T 1, batch 1",
        "set, T 1, batch 4",
    ]


def test_alternating_keeps_even_turns_and_reverses_odd_ones() -> None:
    """Nothing is lost, and the items themselves are left alone."""
    items = ["a", "b", "c"]
    assert [alternating(items, turn) for turn in (0, 1, 2)] == [items, ["c", "b", "a"], items]
    assert items == ["a", "b", "c"]

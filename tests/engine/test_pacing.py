"""What a prompt that arrives costs those who decode: at most a round, on any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ssd_runtime.engine.pacing import FIRST_TOKENS, Pacer


def reading_weights(tokens: int) -> float:
    """A machine that reads its weights once in 16 ms, or computes 1 ms for each token."""
    return max(0.016, 0.001 * tokens)


def computing(tokens: int) -> float:
    """A machine whose every token costs the same."""
    return 0.001 * tokens


def overhead(tokens: int) -> float:
    """A machine on which launching costs most."""
    return 0.010 + 0.00001 * tokens


@pytest.mark.parametrize("machine", [reading_weights, computing, overhead])
@pytest.mark.parametrize("decoding", [1, 8, 40])
def test_a_round_that_reads_a_prompt_takes_at_most_two_rounds_time(
    machine: Callable[[int], float], decoding: int
) -> None:
    """And nearly so much, so that the prompt is read soon."""
    pacer = Pacer()
    pacer.note(decoding, 0, machine(decoding))
    for _ in range(20):
        reading = pacer.allowance
        pacer.note(decoding, reading, machine(decoding + reading))
    rounds = machine(decoding + pacer.allowance) / machine(decoding)
    assert rounds <= 2.0 or pacer.allowance == 1
    assert machine(decoding + pacer.allowance + 2) / machine(decoding) > 1.9


def test_a_last_short_chunk_says_nothing_of_how_much_would_do() -> None:
    """It was short because the prompt ended."""
    pacer = Pacer()
    pacer.note(8, 0, 0.02)
    pacer.note(8, 3, 0.021)
    assert pacer.allowance == FIRST_TOKENS


def test_what_takes_too_long_is_cut_at_once() -> None:
    """Also when it was less than allowed."""
    pacer = Pacer()
    pacer.note(8, 0, 0.02)
    pacer.note(8, 8, 0.2)
    assert pacer.allowance < 8


def test_without_rows_that_decode_nothing_is_learnt() -> None:
    """There is no round to compare with."""
    pacer = Pacer()
    pacer.note(0, 512, 3.0)
    pacer.note(8, 16, 3.0)
    assert pacer.allowance == FIRST_TOKENS

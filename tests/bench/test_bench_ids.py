"""A mode that says something else ends the run, and the message says where."""

from __future__ import annotations

import pytest

from ssd_runtime.bench.answering import Pass, Streamed
from ssd_runtime.bench.ids import IdsCheck, IdsDifferError
from ssd_runtime.bench.plan import Cell, Turn
from ssd_runtime.bench.prompts import Prompt, PromptSet

SET = PromptSet("set", (Prompt("sky", "?"), Prompt("sea", "?")))


def turn(batch: int = 1, temperature: float = 0.0, repetition: int = 0) -> Turn:
    return Turn(Cell(SET, temperature, batch), repetition, 0, 0)


def answers(*ids: tuple[int, ...]) -> Pass:
    names = [prompt.id for prompt in SET.prompts]
    return Pass(tuple(Streamed(name, found, 0.0, ()) for name, found in zip(names, ids, strict=True)))


def test_the_first_prompt_and_position_that_differ_are_named() -> None:
    """Here the second prompt, at its third token, with both tokens and who gave them."""
    check = IdsCheck()
    check.check(turn(), "autoregressive", answers((1, 2), (3, 4, 5, 6)))
    with pytest.raises(IdsDifferError) as error:
        check.check(turn(), "ssd", answers((1, 2), (3, 4, 9, 9)))
    assert str(error.value) == (
        "prompt 'sea' of set at T 0: token 2 is 5 in autoregressive (batch 1, repetition 1) "
        "and 9 in ssd (batch 1, repetition 1)"
    )


@pytest.mark.parametrize(
    ("ids", "message"),
    [((1,), "token 1 is 2 in .* and missing in ssd"), ((1, 2, 3), "token 2 is missing in .* and 3 in ssd")],
)
def test_an_answer_that_ends_elsewhere_differs(ids: tuple[int, ...], message: str) -> None:
    """One that is a beginning of the other is not the same."""
    check = IdsCheck()
    check.check(turn(), "autoregressive", answers((1, 2), ()))
    with pytest.raises(IdsDifferError, match=message):
        check.check(turn(), "ssd", answers(ids, ()))


def test_a_sampler_of_many_texts_is_compared_where_it_has_one() -> None:
    """At temperature 0; above it the ids say that nothing was compared."""
    check = IdsCheck(sampled_too=False)
    for temperature in (0.0, 1.0):
        check.check(turn(temperature=temperature), "autoregressive", answers((1, 2), (3,)))
    check.check(turn(temperature=1.0), "ssd", answers((1, 9), (3,)))
    with pytest.raises(IdsDifferError):
        check.check(turn(), "ssd", answers((1, 9), (3,)))
    assert check.digest("set", 1.0) == "not compared"
    assert check.digest("set", 0.0) != "not compared"


@pytest.mark.parametrize("other", [turn(batch=4), turn(repetition=1)])
def test_batch_sizes_and_repetitions_are_compared_too(other: Turn) -> None:
    """A request has one answer: alone or in a batch, the first time or again."""
    check = IdsCheck()
    check.check(turn(), "ssd", answers((1,), (2,)))
    with pytest.raises(IdsDifferError, match="'sea'"):
        check.check(other, "ssd", answers((1,), (7,)))


def test_another_temperature_is_another_answer() -> None:
    """It is not compared, and has a hash of its own."""
    check = IdsCheck()
    check.check(turn(temperature=0.0), "ssd", answers((1,), (2,)))
    check.check(turn(temperature=1.0), "ssd", answers((8,), (9,)))
    assert check.digest("set", 0.0) != check.digest("set", 1.0)


def test_the_hash_does_not_depend_on_the_order_of_the_answers() -> None:
    """The same ids give the same hash, other ids another."""
    digests = []
    for first, second in (((1,), (2,)), ((1,), (2,)), ((1,), (3,))):
        check = IdsCheck()
        check.check(turn(), "ssd", Pass(answers(first, second).answers[::-1]))
        digests.append(check.digest("set", 0.0))
    assert digests[0] == digests[1] != digests[2]

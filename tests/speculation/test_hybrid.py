"""The fastest mode is measured while it serves: deterministic, given what the controller is told."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ssd_runtime.speculation.hybrid import (
    ADVANTAGE,
    FAR,
    FIRST_ROUNDS,
    HELD_ROUNDS,
    LEAST_ROUNDS,
    LOOK_ROUNDS,
    REMEMBERED_ROUNDS,
    SHARE,
    UNCERTAINTY,
    WARM_UP_ROUNDS,
    HybridController,
)
from ssd_runtime.testing.moods import modes_of
from ssd_runtime.types import RowMode

AR, SD, SSD, LOW = RowMode.AUTOREGRESSIVE, RowMode.SPECULATIVE, RowMode.SSD, RowMode.LOW_LATENCY
FIRST = WARM_UP_ROUNDS + FIRST_ROUNDS
LOOK = WARM_UP_ROUNDS + LOOK_ROUNDS
SHORT_LOOK = WARM_UP_ROUNDS + 2


def controller_of(*modes: RowMode, costly: Sequence[RowMode] = ()) -> HybridController:
    """One that may hold any of `modes`."""
    return HybridController(lambda: modes, lambda: costly)


def seconds(modes: Sequence[RowMode], speeds: dict[RowMode, float]) -> float:
    """How long these rounds took."""
    return sum(10 / speeds[mode] for mode in modes)


def test_every_mode_is_looked_at_and_the_fastest_held() -> None:
    """In the order given, each for the same number of rounds."""
    controller = controller_of(AR, SD, SSD)
    modes = modes_of(controller, {AR: 10.0, SD: 20.0, SSD: 18.0}, 2 * FIRST + 2 * LOOK + HELD_ROUNDS)
    assert modes == [AR] * FIRST + [SD] * LOOK + [SD] * FIRST + [SSD] * LOOK + [SD] * HELD_ROUNDS


def test_nothing_is_the_fastest_before_all_were_looked_at() -> None:
    """Then it is the one held."""
    controller = controller_of(AR, SD)
    modes_of(controller, {AR: 10.0, SD: 20.0}, FIRST + LOOK - 1)
    assert controller.fastest is None
    modes_of(controller, {AR: 10.0, SD: 20.0}, 1)
    assert controller.fastest is SD


def test_a_look_ends_early_where_there_is_no_hope() -> None:
    """A mode that is far slower shows it in two rounds."""
    controller = controller_of(AR, SD)
    modes = modes_of(controller, {AR: 10.0, SD: 2.0}, FIRST + LOOK)
    assert modes == [AR] * FIRST + [SD] * SHORT_LOOK + [AR] * (LOOK - SHORT_LOOK)


def test_many_rows_show_in_fewer_rounds_what_there_is_to_see() -> None:
    """How long a look is, and how soon it ends where there is no hope: rounds of rows count."""
    for rows, whole, short in ((1, LOOK_ROUNDS, 6), (4, LEAST_ROUNDS, 2), (16, LEAST_ROUNDS, 1)):
        for speed, rounds in ((20.0, whole), (8.0, short)):
            controller = HybridController(lambda: (AR, SD), rows=rows)
            modes = modes_of(controller, {AR: 10.0, SD: speed}, FIRST + WARM_UP_ROUNDS + rounds)
            assert modes.count(SD) == WARM_UP_ROUNDS + rounds
            assert controller.fastest is (SD if speed > 10 else AR)


def test_it_looks_again_and_changes_its_mind() -> None:
    """When the held mode became slower than another for a while."""
    controller = controller_of(AR, SD, SSD)
    modes_of(controller, {AR: 10.0, SD: 20.0, SSD: 15.0}, 200)
    assert controller.mode is SD
    modes = modes_of(controller, {AR: 10.0, SD: 5.0, SSD: 15.0}, 400)
    assert set(modes[-20:]) == {SSD}


def test_a_mode_that_was_lucky_is_left_as_soon_as_its_luck_is_over() -> None:
    """Nobody waits until the next look at the others would be due."""
    controller = controller_of(AR, SD)
    modes_of(controller, {AR: 10.0, SD: 20.0}, 100)
    modes_of(controller, {AR: 80.0, SD: 20.0}, 1000)
    assert controller.fastest is AR
    modes = modes_of(controller, {AR: 10.0, SD: 20.0}, 2 * LOOK)
    assert modes.count(AR) <= LOOK
    assert controller.fastest is SD


def test_a_mode_that_becomes_slower_with_everything_else_stays() -> None:
    """After one look at the best of the others, which has become slower too."""
    controller = controller_of(AR, SD, SSD)
    modes_of(controller, {AR: 10.0, SD: 20.0, SSD: 12.0}, 400)
    modes = modes_of(controller, {AR: 3.0, SD: 6.0, SSD: 3.6}, 4 * HELD_ROUNDS)
    assert modes.count(SSD) == SHORT_LOOK
    assert controller.fastest is SD


def test_a_mode_whose_first_look_is_too_dear_is_not_looked_at_because_another_fell() -> None:
    """What is looked at without delay is the best of those that are known."""
    controller = controller_of(LOW, SD, AR, costly=(SD,))
    modes_of(controller, {LOW: 20.0, AR: 10.0}, 100)
    assert set(modes_of(controller, {LOW: 8.0, AR: 10.0, SD: 30.0}, 2 * LOOK)) == {LOW, AR}
    assert controller.mode is AR


def test_the_unit_of_time_does_not_matter() -> None:
    """A machine a thousand times slower changes its mode in the same rounds, and one that is faster too."""
    usual = {AR: 8.0, SD: 16.0, SSD: 14.0}
    expected = modes_of(controller_of(AR, SD, SSD), usual, 2000)
    for factor in (2.0**-10, 2.0**10):
        speeds = {mode: factor * speed for mode, speed in usual.items()}
        assert modes_of(controller_of(AR, SD, SSD), speeds, 2000) == expected


def test_looking_costs_no_more_than_its_share_of_the_time() -> None:
    """Of each mode that is not held, beside the first look at it."""
    speeds = {AR: 10.0, SD: 20.0, SSD: 7.0}
    controller = controller_of(AR, SD, SSD)
    modes_of(controller, speeds, 100)
    modes = modes_of(controller, speeds, 20_000)
    assert set(modes) == {AR, SD, SSD}
    best = seconds([SD] * len(modes), speeds)
    assert seconds(modes, speeds) < best * (1 + 2 * SHARE)


def test_a_mode_that_is_far_behind_gets_a_smaller_share() -> None:
    """It would have to gain much to be of use."""
    speeds = {AR: 20.0, SD: 7.0}
    controller = controller_of(AR, SD)
    modes_of(controller, speeds, 100)
    modes = modes_of(controller, speeds, 20_000)
    lost = seconds(modes, speeds) / seconds([AR] * len(modes), speeds) - 1
    assert 0.5 * SHARE / FAR < lost < SHARE / FAR


def test_a_mode_that_is_nearly_as_fast_is_looked_at_more_often() -> None:
    """It costs less, and is the likelier one to become the fastest."""
    modes = modes_of(controller_of(AR, SD, SSD), {AR: 5.0, SD: 20.0, SSD: 19.0}, 20_000)
    assert modes.count(SSD) > 2 * modes.count(AR) > 0


def test_a_mode_that_is_nearly_as_fast_is_looked_at_sooner_while_little_is_known_of_it() -> None:
    """The time from one look to the next grows with the rounds that were seen, until there are enough."""
    controller = controller_of(AR, SSD)
    modes = modes_of(controller, {AR: 20.0, SSD: 18.0}, 20_000)
    starts = [i for i in range(1, len(modes)) if modes[i] is SSD and modes[i - 1] is AR]
    waits = [after - before for before, after in itertools.pairwise(starts)]
    known = REMEMBERED_ROUNDS // LOOK_ROUNDS
    assert waits[: known - 1] == sorted(set(waits[: known - 1]))
    assert max(waits[known:]) - min(waits[known:]) <= FIRST


def test_a_costly_mode_waits_until_its_first_look_is_within_the_budget() -> None:
    """In a large batch even one round of it is dear."""
    controller = controller_of(AR, SD, costly=(SD,))
    modes = modes_of(controller, {AR: 10.0, SD: 20.0}, 2000)
    assert modes.index(SD) >= FIRST_ROUNDS / SHARE
    assert modes[-1] is SD


def test_hardly_faster_is_not_faster() -> None:
    """Noise does not move the mode to and fro."""
    controller = controller_of(AR, SD)
    modes = modes_of(controller, {AR: 10.0, SD: 10.0 * (1 + ADVANTAGE / 2)}, 2000)
    assert modes.count(AR) > modes.count(SD)
    assert controller.fastest is AR


def test_a_small_advantage_must_show_in_many_rounds() -> None:
    """A single look cannot tell it from chance."""
    controller = controller_of(AR, SD)
    speeds = {AR: 10.0, SD: 10.0 * (1 + ADVANTAGE + UNCERTAINTY / 6)}
    modes_of(controller, speeds, FIRST + LOOK)
    assert controller.fastest is AR
    modes_of(controller, speeds, 20_000)
    assert controller.fastest is SD


def test_a_machine_that_becomes_faster_does_not_make_the_next_look_a_better_one() -> None:
    """Nor does one that becomes slower make it worse: what is compared are neighbours in time."""
    controller = controller_of(AR, SD)
    speeds = {AR: 10.0, SD: 9.5}
    for machine in (1.0, 2.0) * 20:
        modes_of(controller, {mode: machine * speed for mode, speed in speeds.items()}, 1000)
        assert controller.fastest is AR


def test_the_first_rounds_of_a_look_do_not_count() -> None:
    """They still show the mode before."""
    controller = controller_of(AR, SD)
    for rounds, each in ((WARM_UP_ROUNDS, 1000.0), (FIRST_ROUNDS, 1.0)):
        for _ in range(rounds):
            controller.note_round(10, each)
    modes_of(controller, {AR: 10.0, SD: 5.0}, LOOK)
    assert controller.mode is AR


def test_a_few_unlucky_rounds_do_not_undo_many() -> None:
    """What earlier looks found of a mode counts beside what the last one did."""
    controller = controller_of(AR, SD)
    modes_of(controller, {AR: 10.0, SD: 12.0}, 3000)
    assert controller.mode is SD
    for _ in range(3 * LOOK):
        speed = 14.0 if controller.mode is AR else 12.0
        controller.note_round(10, 10 / speed)
    assert controller.fastest is SD


def test_the_held_mode_is_judged_by_its_latest_rounds() -> None:
    """It has become slow long ago, and what was measured before that is forgotten."""
    controller = controller_of(AR, SD)
    modes_of(controller, {AR: 30.0, SD: 20.0}, 3000)
    modes = modes_of(controller, {AR: 10.0, SD: 20.0}, 3000)
    assert modes[-1] is SD


def test_rounds_that_take_no_time_divide_by_nothing() -> None:
    """A clock too coarse."""
    controller = controller_of(AR, SD)
    for _ in range(100):
        controller.note_round(0, 0.0)
    assert controller.mode in (AR, SD)

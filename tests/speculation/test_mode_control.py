"""The mode of the moment: fixed, low-latency in a crowd, or the fastest for this many requests."""

from __future__ import annotations

import pytest

from ssd_runtime.speculation.hybrid import LOOK_ROUNDS, SHARE, WARM_UP_ROUNDS
from ssd_runtime.speculation.mode_control import (
    STEADY_ROUNDS,
    FixedMode,
    HybridByLoad,
    LowLatencyAbove,
    ModeController,
    make_controller,
)
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.testing.moods import modes_of
from ssd_runtime.types import Mode, RowMode

AR, SD, SSD, LOW = RowMode.AUTOREGRESSIVE, RowMode.SPECULATIVE, RowMode.SSD, RowMode.LOW_LATENCY
LOOK = WARM_UP_ROUNDS + LOOK_ROUNDS
LONG = int(10 * LOOK / SHARE)
"""Rounds after which also what is costly was looked at."""


def test_a_fixed_mode_learns_nothing() -> None:
    """Whatever it hears."""
    fixed = FixedMode(SSD)
    fixed.note_round(0, 1e9)
    assert fixed.mode is SSD


def modes(controller: ModeController, loads: list[int]) -> list[RowMode]:
    """The mode of a round for each of these numbers of requests; every mode is equally fast."""
    seen = []
    for load in loads:
        controller.note_load(load)
        seen.append(controller.mode)
        controller.note_round(1, 1.0)
    return seen


def test_above_the_threshold_the_low_latency_mode_starts_at_once() -> None:
    """At the threshold it does not."""
    controller = LowLatencyAbove(SSD, 8)
    assert modes(controller, [1, 8, 8, 9, 30]) == [SSD, SSD, SSD, LOW, LOW]


def test_it_ends_when_the_load_has_been_lower_for_a_while() -> None:
    """8, 9 and 8 in quick turns do not move it to and fro."""
    controller = LowLatencyAbove(SSD, 8)
    calm = [8] * (STEADY_ROUNDS - 1)
    assert set(modes(controller, [9, *calm[:3], 9, *calm[:3]])) == {LOW}
    assert modes(controller, [*calm, 8])[-1] is SSD


def test_a_while_is_so_many_rounds_and_none_less() -> None:
    """It counts from the last round of the crowd."""
    assert modes(LowLatencyAbove(SSD, 8), [9, 9, *[8] * STEADY_ROUNDS])[-2:] == [LOW, SSD]


def test_an_idle_engine_is_in_no_crowd() -> None:
    """The next request, alone, is not served as one of many."""
    controller = LowLatencyAbove(SSD, 1)
    assert modes(controller, [2, 2]) == [LOW, LOW]
    controller.note_load(0)
    assert modes(controller, [1]) == [SSD]


def test_in_a_crowd_lookups_that_do_not_pay_are_left() -> None:
    """Case B62: not below plain decoding, whatever the threshold; the mode stays what it is."""
    controller = LowLatencyAbove(SSD, 4)
    looked_up = []
    for _ in range(8 * LOOK):
        controller.note_load(8)
        assert controller.mode is LOW
        looked_up.append(controller.looks_up)
        controller.note_round(10, 2.0 if controller.looks_up else 1.0)
    assert looked_up[0]
    assert looked_up.count(False) > 0.7 * len(looked_up)


def test_hybrid_measures_each_size_of_batch_for_itself() -> None:
    """What is fastest for one request is not what is fastest for eight."""
    controller = HybridByLoad(threshold=8, max_batch_size=16)
    controller.note_load(1)
    modes_of(controller, {AR: 10.0, LOW: 11.0, SD: 20.0, SSD: 30.0}, 8 * LOOK)
    assert controller.mode is SSD
    controller.note_load(8)
    modes_of(controller, {AR: 50.0, LOW: 70.0, SD: 40.0, SSD: 30.0}, LONG)
    assert controller.mode is LOW
    assert modes(controller, [1] * STEADY_ROUNDS)[-1] is SSD


def test_hybrid_takes_a_batch_for_smaller_when_it_has_been_so_for_a_while() -> None:
    """At once only when there is nobody left."""
    controller = HybridByLoad(threshold=8, max_batch_size=16)
    for load in (1, 8):
        controller.note_load(load)
        modes_of(controller, {AR: 10.0, LOW: 11.0, SD: 20.0, SSD: 30.0 if load == 1 else 1.0}, 8 * LOOK)
    assert modes(controller, [1] * STEADY_ROUNDS) == [SD] * (STEADY_ROUNDS - 1) + [SSD]
    assert modes(controller, [8, 0, 1]) == [SD, SSD, SSD]


def test_hybrid_holds_what_it_measured_whatever_the_threshold_says() -> None:
    """The measured switch point overrides it: SSD for nine, if that is faster."""
    controller = HybridByLoad(threshold=8, max_batch_size=16)
    speeds = {AR: 10.0, LOW: 11.0, SD: 20.0, SSD: 30.0}
    controller.note_load(9)
    assert modes_of(controller, speeds, 1) == [LOW]
    modes_of(controller, speeds, LONG)
    assert controller.mode is SSD


def test_hybrid_does_not_try_drafting_in_a_larger_batch_than_one_in_which_it_lost() -> None:
    """There a guess costs more; looking would cost time for nothing."""
    controller = HybridByLoad(threshold=8, max_batch_size=16)
    controller.note_load(4)
    modes_of(controller, {AR: 40.0, LOW: 30.0, SD: 20.0, SSD: 10.0}, 40)
    assert controller.mode is AR
    controller.note_load(16)
    assert set(modes_of(controller, {AR: 40.0, LOW: 30.0, SD: 1.0, SSD: 1.0}, 40)) == {AR, LOW}


def test_hybrid_tries_drafting_at_once_where_it_paid_in_a_smaller_batch() -> None:
    """Where nothing is known of it, a look waits until its cost is within the budget."""
    speeds = {AR: 10.0, LOW: 11.0, SD: 20.0, SSD: 30.0}
    known, unknown = (HybridByLoad(threshold=8, max_batch_size=16) for _ in range(2))
    known.note_load(1)
    modes_of(known, speeds, 8 * LOOK)
    for controller in (known, unknown):
        controller.note_load(16)
    assert SSD in modes_of(known, speeds, 8 * LOOK)
    assert not {SD, SSD} & set(modes_of(unknown, speeds, 2 * LOOK))


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_up_to_the_threshold_drafting_is_tried_at_once(rows: int) -> None:
    """A server may never have seen a single request."""
    controller = HybridByLoad(threshold=8, max_batch_size=16)
    controller.note_load(rows)
    assert {SD, SSD} <= set(modes_of(controller, {AR: 10.0, LOW: 11.0, SD: 20.0, SSD: 30.0}, 4 * LOOK))


def test_hybrid_begins_with_lookups_above_the_threshold_only() -> None:
    """Before anything was measured; at the threshold itself it decodes plainly."""
    controller = HybridByLoad(threshold=4, max_batch_size=16)
    controller.note_load(4)
    assert controller.mode is AR
    controller.note_load(5)
    assert controller.mode is LOW


def test_without_a_draft_every_row_is_plain() -> None:
    """Whatever the controller would have."""
    assert Modes(FixedMode(SSD), has_draft=False).current is AR
    assert Modes(FixedMode(SSD), has_draft=True).current is SSD


def test_a_queue_makes_the_batch_no_larger() -> None:
    """What waits costs nothing: the modes of a full batch are measured once."""
    controller = HybridByLoad(threshold=8, max_batch_size=4)
    controller.note_load(4)
    speeds = {AR: 10.0, LOW: 20.0, SD: 30.0, SSD: 40.0}
    modes_of(controller, speeds, LONG)
    controller.note_load(400)
    assert modes_of(controller, speeds, 2 * LOOK).count(SSD) >= LOOK


def test_a_single_request_may_be_fastest_with_lookups() -> None:
    """Where a draft model is too dear, what the text repeats still costs nothing."""
    controller = HybridByLoad(threshold=8, max_batch_size=8)
    controller.note_load(1)
    modes = modes_of(controller, {AR: 10.0, LOW: 12.0, SD: 8.0, SSD: 9.0}, 8 * LOOK)
    assert set(modes) == {AR, LOW, SD, SSD}
    assert modes[-1] is LOW


def test_the_policy_says_which_controller() -> None:
    """Plain decoding has nothing to switch."""
    made = {mode: make_controller(mode, threshold=8, max_batch_size=8) for mode in Mode}
    assert isinstance(made[Mode.HYBRID], HybridByLoad)
    assert isinstance(made[Mode.SSD], LowLatencyAbove)
    assert modes(made[Mode.SPECULATIVE], [8]) == [SD]
    assert modes(made[Mode.AUTOREGRESSIVE], [99]) == [AR]

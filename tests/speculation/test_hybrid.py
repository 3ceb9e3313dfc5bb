"""The controller measures every mode and keeps the fastest: deterministic, given what it is told."""

from __future__ import annotations

from ssd_runtime.speculation.hybrid import (
    ADVANTAGE,
    FIRST_HOLD,
    LONGEST_HOLD,
    PROBE_ROUNDS,
    WARM_UP_ROUNDS,
    FixedMode,
    HybridController,
)
from ssd_runtime.types import RowMode

AR, SD, SSD = RowMode.AUTOREGRESSIVE, RowMode.SPECULATIVE, RowMode.SSD
PROBES = 3 * (WARM_UP_ROUNDS + PROBE_ROUNDS)


def run(controller: HybridController, speeds: dict[RowMode, float], rounds: int) -> list[RowMode]:
    """The modes of so many rounds, each as fast (tokens a second) as `speeds` says."""
    modes = []
    for _ in range(rounds):
        modes.append(controller.mode)
        controller.note_round(10, 10 / speeds[controller.mode])
    return modes


def test_every_mode_is_probed_and_the_fastest_held() -> None:
    """In the order given, each for the same number of rounds."""
    controller = HybridController(lambda: (AR, SD, SSD))
    modes = run(controller, {AR: 10.0, SD: 20.0, SSD: 15.0}, PROBES + FIRST_HOLD)
    each = WARM_UP_ROUNDS + PROBE_ROUNDS
    assert modes == [AR] * each + [SD] * each + [SSD] * each + [SD] * FIRST_HOLD


def test_it_looks_again_and_changes_its_mind() -> None:
    """When the held mode became slower than another."""
    controller = HybridController(lambda: (AR, SD, SSD))
    run(controller, {AR: 10.0, SD: 20.0, SSD: 15.0}, PROBES + FIRST_HOLD)
    run(controller, {AR: 10.0, SD: 5.0, SSD: 15.0}, PROBES)
    assert controller.mode is SSD


def test_a_winner_is_asked_about_ever_less() -> None:
    """The hold doubles up to its limit, so that probing costs next to nothing in the end."""
    controller = HybridController(lambda: (AR, SD))
    modes = run(controller, {AR: 10.0, SD: 20.0}, 20_000)
    assert modes.count(SD) > 0.97 * len(modes)
    longest = max(len(part) for part in "".join("s" if mode is SD else "a" for mode in modes).split("a"))
    assert LONGEST_HOLD <= longest <= LONGEST_HOLD + 2 * (WARM_UP_ROUNDS + PROBE_ROUNDS)


def test_hardly_faster_is_not_faster() -> None:
    """Noise does not move the mode to and fro."""
    controller = HybridController(lambda: (AR, SD))
    run(controller, {AR: 10.0, SD: 10.0 * (1 + ADVANTAGE) / 2}, 2 * (WARM_UP_ROUNDS + PROBE_ROUNDS))
    assert controller.mode is AR


def test_the_first_rounds_of_a_probe_do_not_count() -> None:
    """They still show the mode before."""
    controller = HybridController(lambda: (AR, SD))
    for rounds, seconds in ((WARM_UP_ROUNDS, 1000.0), (PROBE_ROUNDS, 1.0)):
        for _ in range(rounds):
            controller.note_round(10, seconds)
    run(controller, {AR: 1.0, SD: 5.0}, WARM_UP_ROUNDS + PROBE_ROUNDS)
    assert controller.mode is AR


def test_rounds_that_take_no_time_divide_by_nothing() -> None:
    """A clock too coarse."""
    controller = HybridController(lambda: (AR, SD))
    for _ in range(100):
        controller.note_round(0, 0.0)
    assert controller.mode in (AR, SD)


def test_a_fixed_mode_learns_nothing() -> None:
    """Whatever it hears."""
    fixed = FixedMode(SSD)
    fixed.note_round(0, 1e9)
    assert fixed.mode is SSD

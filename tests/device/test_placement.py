"""Which cores serve which role."""

from __future__ import annotations

import pytest

from ssd_runtime.device import cores, placement
from ssd_runtime.device.placement import Places, place
from ssd_runtime.types import Mode


def with_cores(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    for module in (cores, placement):
        monkeypatch.setattr(module, "available_cores", lambda: frozenset(numbers))


def test_ssd_shares_the_cores_between_the_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halves that do not overlap; the target gets the odd one."""
    with_cores(monkeypatch, 0, 1, 2, 5, 7)
    places = place("auto", "auto", Mode.SSD)
    assert places.target == {0, 1, 2}
    assert places.draft == {5, 7}


@pytest.mark.parametrize("mode", [Mode.AUTOREGRESSIVE, Mode.SPECULATIVE])
def test_roles_that_take_turns_get_every_core(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left idle."""
    with_cores(monkeypatch, 0, 1)
    places = place("auto", "auto", mode)
    assert places.target == places.draft == {0, 1}


def test_one_core_serves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to share."""
    with_cores(monkeypatch, 3)
    places = place("auto", "auto", Mode.SSD)
    assert places.target == places.draft == {3}


def test_a_place_that_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any mode; the other role's `auto` is what it would have been."""
    with_cores(monkeypatch, 0, 1, 2, 3)
    places = place("cpu:0", "auto", Mode.SSD)
    assert places.target == {0}
    assert places.draft == {2, 3}
    assert place("cpu:1", "cpu:1", Mode.SSD).draft == {1}


@pytest.mark.parametrize(
    ("places", "apart"),
    [
        (Places(frozenset({0}), frozenset({1})), True),
        (Places(frozenset({0, 1}), frozenset({1})), False),
        (Places(frozenset({0}), frozenset({0}), "cuda:0", "cuda:1"), True),
        (Places(frozenset({0}), frozenset({1}), "cuda:0", "cuda:0"), False),
        (Places(frozenset({0}), frozenset({0}), "cuda:0", "cpu"), True),
    ],
)
def test_roles_are_apart_where_neither_takes_anything_from_the_other(places: Places, apart: bool) -> None:
    """On the CPU that is a matter of cores, else of devices."""
    assert places.are_apart is apart

"""Which cores serve which role."""

from __future__ import annotations

import pytest

from ssd_runtime.device import cores, placement
from ssd_runtime.device.placement import Places, place


def with_cores(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    for module in (cores, placement):
        monkeypatch.setattr(module, "available_cores", lambda: frozenset(numbers))


def test_both_roles_have_every_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every mode: none is left idle while a lane rests."""
    with_cores(monkeypatch, 0, 1, 2, 5, 7)
    places = place("auto", "auto")
    assert places.target == places.draft == {0, 1, 2, 5, 7}


def test_one_core_serves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to share."""
    with_cores(monkeypatch, 3)
    places = place("auto", "auto")
    assert places.target == places.draft == {3}


def test_auto_is_every_core_that_the_other_role_was_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names one role's cores wants them for that role."""
    with_cores(monkeypatch, 0, 1, 2, 3)
    assert place("cpu:0", "auto") == Places(frozenset({0}), frozenset({1, 2, 3}))
    assert place("auto", "cpu:1-2") == Places(frozenset({0, 3}), frozenset({1, 2}))
    assert place("cpu:0-3", "auto").draft == {0, 1, 2, 3}


def test_a_place_that_is_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both roles are given the same."""
    with_cores(monkeypatch, 0, 1)
    assert place("cpu:1", "cpu:1") == Places(frozenset({1}), frozenset({1}))


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

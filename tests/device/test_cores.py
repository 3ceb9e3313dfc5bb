"""How sets of cores are written."""

from __future__ import annotations

import pytest

from ssd_runtime.device import cores
from ssd_runtime.device.cores import parse_cores
from ssd_runtime.errors import ConfigError


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cores, "available_cores", lambda: frozenset({0, 1, 2, 5}))


def test_one_core_a_range_and_all() -> None:
    """Ranges include their end."""
    assert parse_cores("cpu:5") == {5}
    assert parse_cores("cpu:0-2") == {0, 1, 2}
    assert parse_cores("auto") == {0, 1, 2, 5}


@pytest.mark.parametrize("place", ["cpu:3", "cpu:0-5", "cpu:9-12"])
def test_cores_that_are_not_there_are_named_beside_those_that_are(place: str) -> None:
    """Also when only some of a range are missing."""
    with pytest.raises(ConfigError, match=r"names cores \[.*available: \[0, 1, 2, 5\]"):
        parse_cores(place)


@pytest.mark.parametrize("place", ["cpu:2-1", "cpu", "cuda:0", "cpu:-1", "cpu:1,2", "", "cpu:0 "])
def test_anything_else_is_refused(place: str) -> None:
    """With what would be understood, or what is there."""
    with pytest.raises(ConfigError, match=r"expected auto|available"):
        parse_cores(place)

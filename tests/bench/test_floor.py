"""How plain decoding is set against the time that reading the weights takes."""

from __future__ import annotations

import pytest

from scripts.measure_floor import Sample, placed, table


def test_a_share_is_the_bytes_read_by_those_that_could_have_been() -> None:
    """30 passes over half a GB, of 20 GB/s."""
    assert Sample("none", 1, 500_000_000, 30.0, 20.0).share == pytest.approx(0.75)


def test_a_table_has_the_medians_of_each_format_and_number_of_cores() -> None:
    """In the order in which they were measured."""
    rates = (("none", 1, 30.0), ("none", 1, 20.0), ("none", 1, 90.0), ("none", 2, 40.0))
    lines = table([Sample(kind, cores, 500_000_000, rate, 20.0) for kind, cores, rate in rates]).splitlines()
    assert lines[2:] == ["| none | 1 | 30.0 | 20.0 | 0.75 |", "| none | 2 | 40.0 | 20.0 | 1.00 |"]


def test_cores_are_written_as_the_configuration_wants_them() -> None:
    """One by its number, two as a range."""
    assert placed([3]) == ["--set", "placement.target=cpu:3"]
    assert placed([0, 1]) == ["--set", "placement.target=cpu:0-1"]

"""Orders of service: sort keys of waiting requests."""

from __future__ import annotations

from ssd_runtime.api import Order


def first_come_first_served() -> Order:
    """By arrival; a preempted request keeps its place."""
    return lambda waiting: waiting.uid

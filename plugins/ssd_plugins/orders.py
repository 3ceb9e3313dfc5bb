"""Orders of service: sort keys of requests. Whoever has the lowest is served first and preempted last."""

from __future__ import annotations

from ssd_runtime.api import Order, Waiting


class FirstComeFirstServed:
    """By arrival; a preempted request keeps its place."""

    uses_priority = False

    def __call__(self, waiting: Waiting) -> int:
        """The number of the arrival."""
        return waiting.uid


def by_priority() -> Order:
    """By the requests' `priority`, the lowest number first; equal ones by arrival."""
    return lambda waiting: (waiting.request.priority, waiting.uid)

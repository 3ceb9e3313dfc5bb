"""Observers hear of every round, and none of them can end one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from ssd_runtime.stats import RoundRecord

log = structlog.get_logger(__name__)

Listener = Callable[[RoundRecord], None]


class Broadcast:
    """Tells each listener of each round; one that raises is named in the log and not told again."""

    def __init__(self, listeners: Mapping[str, Listener]) -> None:
        self._listeners = tuple(listeners.items())

    def __call__(self, record: RoundRecord) -> None:
        """One verdict."""
        for pair in self._listeners:
            name, listener = pair
            try:
                listener(record)
            except Exception as error:
                self._listeners = tuple(one for one in self._listeners if one is not pair)
                log.warning("an observer failed and is not told again", plugin=name, error=repr(error))

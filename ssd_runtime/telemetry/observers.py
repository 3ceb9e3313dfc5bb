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
        self._listeners = dict(listeners)

    def __call__(self, record: RoundRecord) -> None:
        """One verdict."""
        for name, listener in list(self._listeners.items()):
            try:
                listener(record)
            except Exception as error:
                del self._listeners[name]
                log.warning("an observer failed and is not told again", plugin=name, error=repr(error))

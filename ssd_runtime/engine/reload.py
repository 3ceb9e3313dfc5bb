"""What is changed while the engine runs: only ever between two rounds, on its own loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from ssd_runtime.errors import EngineClosedError

if TYPE_CHECKING:
    from ssd_runtime.engine.core import Speculator
    from ssd_runtime.sequence import Sequence as TokenSequence


class Changes:
    """What is to be done between two rounds. Lives on the engine's loop."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._closed = False

    def add(self, change: Callable[[], None], done: Future[None]) -> None:
        """Let `done` hear when `change` was made, or why not: what it raises, or `EngineClosedError`."""
        if self._closed:
            _refuse(done)
        else:
            self._waiting.append((change, done))

    def apply(self) -> None:
        """Between two rounds: make the changes, in their order."""
        while self._waiting:
            change, done = self._waiting.popleft()
            if done.set_running_or_notify_cancel():
                try:
                    change()
                except Exception as error:
                    done.set_exception(error)
                else:
                    done.set_result(None)

    def close(self) -> None:
        """No round comes any more: what was not made is not made."""
        self._closed = True
        while self._waiting:
            _refuse(self._waiting.popleft()[1])


def _refuse(done: Future[None]) -> None:
    if done.set_running_or_notify_cancel():
        done.set_exception(EngineClosedError("the engine is closing and changes no more"))


class Replaceable:
    """A speculator that is another one from some round on.

    All that the old one kept of requests goes with it: to the new one everybody is new, with the tokens that
    there are.
    """

    def __init__(self, speculator: Speculator, on_finish: Callable[[TokenSequence], None]) -> None:
        """`on_finish` hears of each sequence that was answered to its end."""
        self.current = speculator
        self._on_finish = on_finish

    def use(self, speculator: Speculator, on_finish: Callable[[TokenSequence], None]) -> None:
        """Between two rounds: go on with this one."""
        self.current, self._on_finish = speculator, on_finish

    def finished(self, sequence: TokenSequence) -> None:
        """A sequence was answered to its end."""
        self._on_finish(sequence)

    def forget(self, sequence: TokenSequence) -> None:
        """The sequence ended or lost its KV."""
        self.current.forget(sequence)

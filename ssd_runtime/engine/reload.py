"""What is changed while the engine runs: only ever between two rounds, on its own loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ssd_runtime.errors import EngineClosedError

if TYPE_CHECKING:
    from ssd_runtime.engine.core import Branching, Speculator
    from ssd_runtime.engine.scheduler import BatchRow
    from ssd_runtime.messages import RowResult
    from ssd_runtime.sequence import Sequence as TokenSequence
    from ssd_runtime.speculation.proposal import Proposal
    from ssd_runtime.types import RowMode


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
        self._current = speculator
        self._on_finish = on_finish

    def use(self, speculator: Speculator, on_finish: Callable[[TokenSequence], None]) -> None:
        """Between two rounds: go on with this one."""
        self._current, self._on_finish = speculator, on_finish

    def finished(self, sequence: TokenSequence) -> None:
        """A sequence was answered to its end."""
        self._on_finish(sequence)

    def note_load(self, num_requests: int) -> None:
        """See `Speculator`, as all of these."""
        self._current.note_load(num_requests)

    def mode_of(self, sequence: TokenSequence) -> RowMode:
        """The mode of one row in this round."""
        return self._current.mode_of(sequence)

    def max_drafts(self, sequence: TokenSequence) -> int:
        """Most tokens that a proposal for this row may have now."""
        return self._current.max_drafts(sequence)

    async def take(self, rows: Sequence[BatchRow]) -> list[Proposal]:
        """A proposal for each row."""
        return await self._current.take(rows)

    def will_branch(self, rows: Sequence[BatchRow]) -> bool:
        """Whether `branch` will have something to do for these rows."""
        return self._current.will_branch(rows)

    def branch(self, rows: Sequence[BatchRow], proposals: Sequence[Proposal]) -> Branching:
        """Start preparing the outcomes of this round."""
        return self._current.branch(rows, proposals)

    async def stage(self, branching: Any, results: Sequence[RowResult]) -> None:
        """File what was prepared."""
        await self._current.stage(branching, results)

    def forget(self, sequence: TokenSequence) -> None:
        """The sequence ended or lost its KV."""
        self._current.forget(sequence)

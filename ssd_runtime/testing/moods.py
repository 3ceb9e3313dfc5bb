"""Workers and controllers that do not behave: what becomes of a command is the test's to say."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from ssd_runtime.device.lane import Worker
from ssd_runtime.messages import RowFailure, StopWord, VerifyCommand, VerifyRow
from ssd_runtime.testing.scripted import CountedStop
from ssd_runtime.types import RowMode

Deed = Callable[[Worker, Any], Any]
"""What becomes of a command, in place of what the worker would do."""


class Moody:
    """A worker that does the deeds it was told to, oldest first; then what `worker` does."""

    def __init__(self, worker: Worker, deeds: deque[Deed], minds: Callable[[Any], bool]) -> None:
        """`minds`: the commands that a deed may befall."""
        self._worker = worker
        self._deeds = deeds
        self._minds = minds

    def execute(self, command: Any) -> Any:
        """See `Worker`."""
        if self._deeds and self._minds(command):
            return self._deeds.popleft()(self._worker, command)
        return self._worker.execute(command)


def raises(worker: Worker, command: Any) -> Any:
    """Nothing is done."""
    raise RuntimeError("out of memory")


def loses(worker: Worker, command: Any) -> Any:
    """It is done, and nobody gets the result."""
    worker.execute(command)
    raise RuntimeError("the result is lost")


def answers(rubbish: object) -> Deed:
    """It is done, and the result is something else."""

    def deed(worker: Worker, command: Any) -> Any:
        worker.execute(command)
        return rubbish

    return deed


def fails_a_row(number: int, spoil: Callable[[VerifyRow], None]) -> Deed:
    """It is done, but one row's numbers are no numbers; `spoil` does the same to what was written for it."""

    def deed(worker: Worker, command: VerifyCommand) -> Any:
        results = worker.execute(command)
        spoil(command.rows[number])
        return [RowFailure("not finite") if i == number else result for i, result in enumerate(results)]

    return deed


class Interrupted:
    """A draft's worker that the verdict finds after any number of passes, or in the middle of one."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self._worker = worker
        self._random = Random(seed)

    def execute(self, command: Any) -> Any:
        """Carry out the command, cut short."""
        if hasattr(command, "stop"):
            command = replace(command, stop=self._stop())
        return self._worker.execute(command)

    def check(self) -> None:
        """The worker's own check, where it has one."""
        getattr(self._worker, "check", lambda: None)()

    def _stop(self) -> StopWord:
        passes = self._random.choice((0, 1, 2, 3, 4, 99, 99, -1))
        if passes >= 0:
            return CountedStop(passes)
        stop = StopWord()
        self._random.choice((stop.set, stop.set_after_step))()
        return stop


class Restless:
    """A mode controller that takes another mode every round."""

    looks_up = True

    def __init__(self) -> None:
        self.mode = RowMode.AUTOREGRESSIVE
        self._random = Random(0)

    def note_load(self, num_requests: int) -> None:
        """Whatever the load."""

    def note_round(self, tokens: int, seconds: float) -> None:
        """Change the mode."""
        self.mode = self._random.choice((*RowMode, RowMode.SSD))


class Measuring(Protocol):
    """A controller that learns which mode is fast."""

    @property
    def mode(self) -> RowMode: ...
    def note_round(self, tokens: int, seconds: float) -> None: ...


def modes_of(controller: Measuring, speeds: Mapping[RowMode, float], rounds: int) -> list[RowMode]:
    """The modes of so many rounds, each as fast (tokens a second) as `speeds` says."""
    modes = []
    for _ in range(rounds):
        modes.append(controller.mode)
        controller.note_round(10, 10 / speeds[controller.mode])
    return modes

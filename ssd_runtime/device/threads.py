"""How many of a lane's cores a command may use, where the lanes share cores.

Two lanes that both run a thread per core on the same cores do not share them: the threads of each
spin at barriers while the other's hold the cores, and everything takes several times as long.
"""

from __future__ import annotations

from typing import Any

from ssd_runtime.device.cores import use_threads
from ssd_runtime.device.lane import Worker


def shares(target: frozenset[int], draft: frozenset[int]) -> tuple[int, int]:
    """Threads of the two lanes while both work: shared cores are split, the target's half rounded up."""
    shared = len(target & draft)
    of_target = len(target - draft) + (shared + 1) // 2
    return max(1, of_target), max(1, len(draft - target) + shared // 2)


class ShareCores:
    """A worker that uses all of its lane's cores, or its share while the other lane works too."""

    def __init__(self, worker: Worker, *, alone: int, together: int) -> None:
        """`alone`, `together`: numbers of threads; commands say which with their `together`."""
        self._worker = worker
        self._alone = alone
        self._together = together
        self._now = alone

    def execute(self, command: Any) -> Any:
        """Carry out one command of the wrapped worker."""
        wanted = self._together if command.together else self._alone
        if wanted != self._now:
            use_threads(wanted)
            self._now = wanted
        return self._worker.execute(command)

"""Preemption by swap: the KV of a sequence in host memory, bit for bit, while it waits.

The engine's loop decides and counts (`HostSwap`); the target's lane copies (`SwappingWorker`). A lane
carries out its commands in order, so a sequence's blocks may be given away as soon as the command that
copies them out is queued, and may be read as soon as the command that fills them is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.device.lane import Worker
    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.sequence import Sequence

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class HostPages:
    """The pages of one sequence, from when a lane has copied them out until it has copied them back.

    data: `[layers, blocks, …]`, as `PagedKV.data` holds them. Belongs to the lane; who drops the last
    reference frees the memory.
    """

    data: Tensor | None = None


@dataclass(frozen=True, slots=True)
class SwapOutCommand:
    """Copy the KV of `blocks` to the host; `num_tokens` of it are of use."""

    blocks: tuple[int, ...]
    pages: HostPages
    num_tokens: int
    kind: str = "swap_out"
    num_rows: int = 1
    together: bool = True


@dataclass(frozen=True, slots=True)
class SwapInCommand:
    """Copy pages back, the first `skipped` of them left out, to `blocks`; the host's are freed."""

    blocks: tuple[int, ...]
    pages: HostPages
    num_tokens: int
    skipped: int = 0
    kind: str = "swap_in"
    num_rows: int = 1
    together: bool = True


class SwappingWorker:
    """Carries out swaps on the KV of the lane's model, and leaves every other command to `worker`."""

    def __init__(self, worker: Worker, kv: PagedKV, transfer: Transfer) -> None:
        self._worker = worker
        self._kv = kv
        self._transfer = transfer
        self._lost: Exception | None = None

    def execute(self, command: Any) -> Any:
        """Carry out one command. A pass behind a swap that failed raises: its KV is not there."""
        match command:
            case SwapOutCommand():
                command.pages.data = self._kv.pages(command.blocks, self._transfer)
            case SwapInCommand():
                try:
                    self._swap_in(command)
                except Exception as error:
                    self._lost = error
                    raise
            case _:
                lost, self._lost = self._lost, None
                if lost is not None:
                    raise RuntimeError("KV was not brought back from the host") from lost
                return self._worker.execute(command)
        return None

    def _swap_in(self, command: SwapInCommand) -> None:
        pages, command.pages.data = command.pages.data, None
        if pages is None:
            raise RuntimeError("these pages were never copied out")
        self._kv.restore(command.blocks, pages[:, command.skipped :], self._transfer)


@dataclass(frozen=True, slots=True)
class _Swapped:
    """A sequence that waits: its pages, the tokens they hold, their bytes, and the copy's completion."""

    pages: HostPages
    kv_len: int
    nbytes: int
    copied: asyncio.Future[Any]

    @property
    def is_lost(self) -> bool:
        """Whether the copy is known to have failed."""
        return self.copied.done() and (self.copied.cancelled() or self.copied.exception() is not None)


class HostSwap:
    """Whose KV is in host memory, at most `capacity` bytes of it. Runs on the engine's loop."""

    def __init__(
        self,
        submit: Callable[[Any], asyncio.Future[Any]],
        *,
        block_size: int,
        block_bytes: int,
        capacity: int,
    ) -> None:
        """`submit` queues a command on the target's lane. block_bytes: of one block, all layers."""
        self.capacity = capacity
        self.used = 0
        self._submit = submit
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._swapped: dict[int, _Swapped] = {}

    def __len__(self) -> int:
        """Sequences whose KV is in host memory."""
        return len(self._swapped)

    def swap_out(self, sequence: Sequence) -> bool:
        """Have the KV of `sequence` copied out of its blocks; False where there is none, or no room."""
        blocks = tuple(sequence.table[: -(-sequence.kv_len // self._block_size)])
        nbytes = len(blocks) * self._block_bytes
        if not blocks or self.used + nbytes > self.capacity:
            return False
        pages = HostPages()
        copied = self._queue(SwapOutCommand(blocks, pages, sequence.kv_len))
        self._swapped[sequence.uid] = _Swapped(pages, sequence.kv_len, nbytes, copied)
        self.used += nbytes
        return True

    def swap_in(self, sequence: Sequence) -> None:
        """Have what was swapped out copied into the sequence's blocks, behind the KV that it has by now.

        Nothing happens where nothing is kept, or where the copy failed: then it is recomputed.
        """
        swapped = self._pop(sequence)
        if swapped is None or swapped.is_lost or swapped.kv_len <= sequence.kv_len:
            return
        skipped = sequence.kv_len // self._block_size
        blocks = tuple(sequence.table[skipped : -(-swapped.kv_len // self._block_size)])
        self._queue(SwapInCommand(blocks, swapped.pages, swapped.kv_len - sequence.kv_len, skipped))
        sequence.kv_len = swapped.kv_len

    def drop(self, sequence: Sequence) -> None:
        """The sequence ended: what is kept of it is freed."""
        self._pop(sequence)

    def start_over(self) -> None:
        """The lane was replaced: what it has copied out is kept, what it has not it never will."""
        self._swapped = {uid: one for uid, one in self._swapped.items() if one.copied.done()}
        self.used = sum(one.nbytes for one in self._swapped.values())

    def _pop(self, sequence: Sequence) -> _Swapped | None:
        swapped = self._swapped.pop(sequence.uid, None)
        self.used -= swapped.nbytes if swapped else 0
        return swapped

    def _queue(self, command: SwapOutCommand | SwapInCommand) -> asyncio.Future[Any]:
        future = self._submit(command)
        future.add_done_callback(_log_failure)
        return future


def _log_failure(future: asyncio.Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.warning("KV could not be swapped", error=repr(error))

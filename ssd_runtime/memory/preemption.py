"""What becomes of a sequence that is preempted: its KV is forgotten or swapped, its history packed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ssd_runtime.memory.history import HistoryCodec, PackedTokens
from ssd_runtime.memory.swap import HostSwap

if TYPE_CHECKING:
    from ssd_runtime.sequence import Sequence


class Preemption:
    """Sends sequences away and takes them back. Runs on the engine's loop.

    num_recomputed, num_swapped: preempted sequences whose KV was forgotten, and kept in host memory.
    """

    def __init__(self, swap: HostSwap | None = None, codec: HistoryCodec | None = None) -> None:
        """Without a `swap` everything is recomputed, without a `codec` histories stay as they are."""
        self.num_recomputed = 0
        self.num_swapped = 0
        self.swap = swap
        self._codec = codec

    def leave(self, sequence: Sequence) -> None:
        """The sequence loses its blocks next: it keeps its tokens, and its KV where it can."""
        if self.swap is not None and self.swap.swap_out(sequence):
            self.num_swapped += 1
        else:
            self.num_recomputed += 1
        sequence.forget_kv()
        if self._codec is not None:
            # reads like a list; nothing is appended to a sequence that waits
            sequence.token_ids = cast("list[int]", self._codec(sequence.token_ids))

    def resume(self, sequence: Sequence) -> None:
        """The sequence has blocks again; what it has in `kv_len` by now (cached) is not copied."""
        if isinstance(sequence.token_ids, PackedTokens):
            sequence.token_ids = list(sequence.token_ids)
        if self.swap is not None:
            self.swap.swap_in(sequence)

    def end(self, sequence: Sequence) -> None:
        """The sequence ended, wherever it stood."""
        if self.swap is not None:
            self.swap.drop(sequence)

"""What becomes of a sequence that is preempted: its KV is forgotten or swapped, its history packed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ssd_runtime.memory.history import HistoryCodec, PackedTokens, history_codecs
from ssd_runtime.memory.swap import HostSwap

if TYPE_CHECKING:
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.sequence import Sequence
    from ssd_runtime.settings.schema import Settings

GIB = 1 << 30


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

    @property
    def num_swapped_now(self) -> int:
        """Sequences whose KV is in host memory now."""
        return len(self.swap) if self.swap is not None else 0

    @property
    def swap_usage(self) -> float:
        """The part of the host memory meant for swapping that is in use."""
        return self.swap.used / self.swap.capacity if self.swap is not None and self.swap.capacity else 0.0

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

    def start_over(self) -> None:
        """The target's lane is another one from now on."""
        if self.swap is not None:
            self.swap.start_over()

    def end(self, sequence: Sequence) -> None:
        """The sequence ended, wherever it stood."""
        if self.swap is not None:
            self.swap.drop(sequence)


def make_preemption(
    settings: Settings, submit: Callable[[Any], asyncio.Future[Any]], kv: PagedKV
) -> Preemption:
    """As the settings say, for the target whose lane takes commands by `submit` and whose KV is `kv`."""
    engine, scheduler = settings.engine, settings.scheduler
    swap = None
    if scheduler.preempt_mode == "swap":
        swap = HostSwap(
            submit,
            block_size=kv.block_size,
            block_bytes=kv.block_size * kv.bytes_per_token,
            capacity=int(scheduler.swap_space * GIB),
        )
    codec = None if engine.history_codec == "none" else history_codecs()[engine.history_codec]
    return Preemption(swap, codec)

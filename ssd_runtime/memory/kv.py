"""The paged key/value store of one model: plain memory, no bookkeeping."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_runtime.memory.entries import FLOATS, decode, encode, entry_bytes, item_bytes, to_float16
from ssd_runtime.messages import BlockCopy

if TYPE_CHECKING:
    from ssd_runtime.device.transfer import Transfer

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class PagedKV:
    """Keys and values of `layers` layers in `num_blocks` blocks of `block_size` tokens.

    `data` is `[layers, num_blocks + 1, kv_heads, block_size, …]`, an entry of `entries.py` in the last
    dimension: numbers of `dtype`, or bytes where they are codes with scales. What one head reads of a
    block lies side by side. The extra block at the end is all zeros and never written; positions that
    a row does not have are read from it.
    Pages are zero, and in host memory take none before they are first written.
    """

    def __init__(
        self,
        layers: int,
        num_blocks: int,
        block_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | None = None,
    ) -> None:
        """`dtype` is float32, float16, int8 or float8_e4m3fn. On the CPU where no `device` is given."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.bytes_per_token = layers * kv_heads * entry_bytes(dtype, head_dim)
        stored = dtype if dtype in FLOATS else torch.uint8
        entry = entry_bytes(dtype, head_dim) // item_bytes(stored)
        shape = (layers, num_blocks + 1, kv_heads, block_size, entry)
        on_host = device is None or device.type == "cpu"
        self.data = _lazy_zeros(shape, stored) if on_host else torch.zeros(shape, dtype=stored, device=device)
        self._kv_heads = kv_heads
        self._layers = [layer.view(-1, entry) for layer in self.data]

    @property
    def zero_slot(self) -> int:
        """The slot (block · block_size + offset) that always holds zeros."""
        return self.num_blocks * self.block_size

    def index(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the entries of `slots` `[…]` lie, for each head: `[…, kv_heads]`."""
        blocks, offsets = np.divmod(slots[..., None], self.block_size)
        index: NDArray[np.int64] = (
            blocks * self._kv_heads + np.arange(self._kv_heads)
        ) * self.block_size + offsets
        return index

    def write(self, layer: int, index: Tensor, vectors: Tensor) -> None:
        """Store `vectors` `[N, kv_heads, 2, head_dim]`, a key and a value, at `index` `[N · kv_heads]`."""
        self._layers[layer].index_copy_(0, index, self._stored(vectors).flatten(0, 1))

    def read(self, layer: int, index: Tensor) -> Tensor:
        """Keys and values `[N, 2 · head_dim]` float32 at `index` `[N]`."""
        entries = self._layers[layer].index_select(0, index)
        return entries.float() if self.dtype in FLOATS else decode(entries, self.dtype)

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out the copies in the order given."""
        for copy in copies:
            source = self.data[:, copy.source, :, : copy.num_tokens]
            self.data[:, copy.target, :, : copy.num_tokens].copy_(source)

    def pages(self, blocks: Sequence[int], transfer: Transfer) -> Tensor:
        """What these blocks hold, bit for bit: a copy in host memory `[layers, len(blocks), …]`."""
        return transfer.down(self.data.index_select(1, transfer.up(torch.tensor(blocks))))

    def restore(self, blocks: Sequence[int], pages: Tensor, transfer: Transfer) -> None:
        """Write what `pages` gave, of as many blocks, into `blocks`."""
        self.data.index_copy_(1, transfer.up(torch.tensor(blocks)), transfer.up(pages))

    def _stored(self, vectors: Tensor) -> Tensor:
        if self.dtype is torch.float32:
            return vectors.flatten(2)
        return to_float16(vectors).flatten(2) if self.dtype is torch.float16 else encode(vectors, self.dtype)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system hands out on first use; torch.zeros would touch them all.

    Large pages where there are any: a pass reads a few bytes in each of thousands of small ones.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    memory = mmap.mmap(-1, max(1, math.prod(shape) * item_bytes(dtype)), **private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    words = np.frombuffer(memory, dtype=_WORDS[item_bytes(dtype)], count=math.prod(shape))
    return torch.from_numpy(words).view(dtype).view(shape)

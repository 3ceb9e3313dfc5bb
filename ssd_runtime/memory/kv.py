"""The paged key/value store of one model: plain memory, no bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ssd_runtime.messages import BlockCopy

_ITEM_BYTES = {torch.float32: 4, torch.float16: 2, torch.bfloat16: 2}


class PagedKV:
    """Keys and values of `layers` layers in `num_blocks` blocks of `block_size` tokens.

    `data` is `[layers, num_blocks + 1, block_size, kv_heads, 2, head_dim]`: keys at 0, values at 1
    of the last but one dimension, so that one gather fetches both. The extra block at the end is
    all zeros and never written; positions that a row does not have are read from it.
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
        """On the CPU where no `device` is given."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.bytes_per_token = 2 * layers * kv_heads * head_dim * _ITEM_BYTES[dtype]
        shape = (layers, num_blocks + 1, block_size, kv_heads, 2, head_dim)
        on_host = device is None or device.type == "cpu"
        self.data = _lazy_zeros(shape, dtype) if on_host else torch.zeros(shape, dtype=dtype, device=device)
        self._layers = [layer.view(-1, kv_heads * 2 * head_dim) for layer in self.data]

    @property
    def zero_slot(self) -> int:
        """The slot (block · block_size + offset) that always holds zeros."""
        return self.num_blocks * self.block_size

    def write(self, layer: int, slots: Tensor, entries: Tensor) -> None:
        """Store `entries` `[N, kv_heads · 2 · head_dim]` (keys, values per head) in `slots` `[N]`."""
        self._layers[layer].index_copy_(0, slots, entries.to(self.data.dtype))

    def read(self, layer: int, index: Tensor) -> Tensor:
        """Entries `[N, 2 · head_dim]` float32 at `index` `[N]`, each slot · kv_heads + head."""
        pages = self.data[layer].view(-1, 2 * self.data.shape[-1])
        return pages.index_select(0, index).float()

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out the copies in the order given."""
        for copy in copies:
            source = self.data[:, copy.source, : copy.num_tokens]
            self.data[:, copy.target, : copy.num_tokens].copy_(source)


def _lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose pages the system hands out on first use; torch.zeros would touch them all."""
    words = np.zeros(shape, dtype=np.uint16 if _ITEM_BYTES[dtype] == 2 else np.uint32)
    return torch.from_numpy(words).view(dtype)

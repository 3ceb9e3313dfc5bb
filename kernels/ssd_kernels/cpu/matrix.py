"""A weight matrix in the native library's panels."""

from __future__ import annotations

import ctypes
import threading
import weakref
from enum import IntEnum

import torch
from torch import Tensor

from ssd_kernels.cpu.library import native_library


class Format(IntEnum):
    """`enum ssd_format`: how a matrix is stored."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3


_DTYPES = {Format.FLOAT32: torch.float32, Format.BFLOAT16: torch.bfloat16}


class _Threads(threading.local):
    count = 1


_threads = _Threads()


def use_threads(count: int) -> None:
    """Let native calls of the calling thread use `count` threads of its cores."""
    _threads.count = count


def num_threads() -> int:
    """How many threads native calls of the calling thread use."""
    return _threads.count


class NativeMatrix:
    """A weight `[out, in]`; every output is summed over its inputs in one order, whatever the rows."""

    def __init__(self, weight: Tensor, kind: Format, library: ctypes.CDLL) -> None:
        """Packs a float32 `weight`. Raises `MemoryError`."""
        out, inputs = weight.shape
        source = weight.to(_DTYPES.get(kind, torch.float32)).contiguous()
        self.library = library
        self.kind = kind
        self.shape = (out, inputs)
        self.handle = library.ssd_pack(int(kind), out, inputs, source.data_ptr())
        if not self.handle:
            raise MemoryError(f"no memory for a weight of {out} times {inputs} in {kind.name}")
        weakref.finalize(self, library.ssd_free, self.handle)
        self.nbytes = int(self.handle.contents.bytes)

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` float32 → `[N, out]` float32. Raises `RuntimeError` for another width."""
        if x.shape[-1] != self.shape[1]:
            raise RuntimeError(f"got rows of {x.shape[-1]} inputs, the weight has {self.shape[1]}")
        source = x.contiguous()
        product = torch.empty(len(x), self.shape[0])
        status = self.library.ssd_product(
            self.handle, source.data_ptr(), len(x), product.data_ptr(), num_threads()
        )
        if status:
            raise MemoryError(f"no memory for a product of {len(x)} rows")
        return product

    @property
    def dtype(self) -> torch.dtype | None:
        """The weight's type of number; None for codes."""
        return _DTYPES.get(self.kind)

    def dense(self) -> Tensor:
        """The values that products use, float32 `[out, in]`."""
        weight = torch.empty(self.shape)
        self.library.ssd_unpack(self.handle, weight.data_ptr())
        return weight


def pack_native(weight: Tensor, kind: Format) -> NativeMatrix | None:
    """`weight` in the native library's panels; None where there is no library."""
    library = native_library()
    return None if library is None else NativeMatrix(weight, kind, library)

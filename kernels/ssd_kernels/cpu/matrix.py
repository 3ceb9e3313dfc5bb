"""A weight matrix in the native library's panels."""

from __future__ import annotations

import ctypes
import threading
import weakref
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from ssd_kernels.cpu.coded import CodedWeight
from ssd_kernels.cpu.library import native_library


class Format(IntEnum):
    """`enum ssd_format`: how a matrix is stored.

    Codes have a float16 scale (4 bits: and a minimum) per 32 inputs of an output. For codes that come with
    scales of their own, WIDE has them in float32, and FINE a float32 scale per 16 inputs.
    """

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT4_WIDE = 4
    INT8_FINE = 5


GROUP = 32
"""Inputs of a group."""

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

    def __init__(self, weight: Tensor | CodedWeight, kind: Format, library: ctypes.CDLL) -> None:
        """Packs a float32 `weight`, or codes that `kind` holds exactly. Raises `MemoryError`."""
        out, inputs = weight.codes.shape if isinstance(weight, CodedWeight) else weight.shape
        self.library = library
        self.kind = kind
        self.shape = (out, inputs)
        if isinstance(weight, CodedWeight):
            self.handle = self._packed_codes(weight)
        else:
            self.handle = self._packed(weight)
        if not self.handle:
            raise MemoryError(f"no memory for a weight of {out} times {inputs} in {kind.name}")
        weakref.finalize(self, library.ssd_free, self.handle)
        self.nbytes = int(self.handle.contents.bytes)

    def _packed(self, weight: Tensor) -> Any:
        source = weight.to(_DTYPES.get(self.kind, torch.float32)).contiguous()
        return self.library.ssd_pack(int(self.kind), *self.shape, source.data_ptr())

    def _packed_codes(self, weight: CodedWeight) -> Any:
        codes, scales = weight.codes.contiguous(), weight.scales.contiguous()
        minima = None if weight.minima is None else weight.minima.contiguous()
        return self.library.ssd_pack_groups(
            int(self.kind),
            *self.shape,
            codes.data_ptr(),
            scales.data_ptr(),
            None if minima is None else minima.data_ptr(),
        )

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


def pack_native_codes(weight: CodedWeight) -> NativeMatrix | None:
    """The same codes and scales in the native library's panels; None where it has no format for them."""
    library, kind = native_library(), _format_of(weight)
    return None if library is None or kind is None else NativeMatrix(weight, kind, library)


def _format_of(weight: CodedWeight) -> Format | None:
    """The smallest format that holds `weight` exactly."""
    is_narrow = weight.group_size == GROUP and weight.is_exact_in(torch.float16)
    if weight.codes.shape[1] % GROUP:
        return None
    if weight.bits == 4 and weight.group_size == GROUP:
        return Format.INT4 if is_narrow else Format.INT4_WIDE
    if weight.bits == 8 and weight.minima is None and weight.group_size == GROUP // 2:
        return Format.INT8_FINE
    return Format.INT8 if weight.bits == 8 and weight.minima is None and is_narrow else None

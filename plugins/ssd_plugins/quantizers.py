"""Quantizers: bf16, int8 and int4, in the native library's panels where there is one.

There int8 and int4 keep a scale (int4 a minimum too) per 32 inputs of an output, and round the inputs of a
product to int8 in the same groups; bf16 multiplies in float32. Where a file keeps a weight in codes of no
more bits than were asked for, those codes and their scales are used as they are, and nothing is rounded.

The matrices below serve where there is no library. They take float32 rows, round them to bfloat16 and use
PyTorch's own kernels, whose rows were found to be independent of each other for every number of rows
(`tests/models/test_quantizers.py`); int8 has one scale per output. Results are rounded to bfloat16 once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from ssd_runtime.api import Format, pack_native, pack_native_codes

if TYPE_CHECKING:
    from ssd_runtime.api import CodedWeight, WeightMatrix

INT4_GROUP = 32
_SMALLEST_SCALE = 1e-12
_TALL = 7
"""A matrix with more outputs per input than this is a vocabulary, not a projection."""


class BFloat16Matrix:
    """A weight in bfloat16."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.bfloat16()
        self.nbytes = self.weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` → `[N, out]`, float32."""
        # one row alone takes a kernel with another order of summation, so it is given a companion
        several = x if len(x) > 1 else x.expand(2, -1)
        return functional.linear(several.bfloat16(), self.weight).float()[: len(x)]

    def to(self, device: torch.device) -> BFloat16Matrix:
        """The same weight on another device."""
        return BFloat16Matrix(self.weight.to(device))


class Int8Matrix:
    """A weight in int8 with one bfloat16 scale per output, chosen by the largest magnitude."""

    def __init__(self, weight: Tensor) -> None:
        self.scales = (weight.abs().amax(1) / 127).clamp_min(_SMALLEST_SCALE).bfloat16()
        scaled = weight / self.scales.float()[:, None]
        self.codes = scaled.round_().clamp_(-127, 127).to(torch.int8)
        self.nbytes = self.codes.nbytes + self.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` → `[N, out]`, float32."""
        return torch._weight_int8pack_mm(x.bfloat16(), self.codes, self.scales).float()


class Int4Matrix:
    """A weight in 4 bits with a bfloat16 scale and zero per 32 inputs of an output: 5 bits in all.

    `in` must be a multiple of 32, `out` of 16.
    """

    def __init__(self, weight: Tensor) -> None:
        out = len(weight)
        groups = weight.reshape(out, -1, INT4_GROUP)
        low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
        scale = ((high - low) / 15).clamp_min(_SMALLEST_SCALE)
        codes = ((groups - low) / scale).round_().clamp_(0, 15).to(torch.int32).view(out, -1)
        self.packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        # the kernel computes (code - 8) · scale + zero
        self.scales = torch.cat((scale, low + 8 * scale), -1).transpose(0, 1).contiguous().bfloat16()
        self.nbytes = self.packed.nbytes + self.scales.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` → `[N, out]`, float32."""
        product: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.bfloat16(), self.packed, INT4_GROUP, self.scales
        )
        return product.float()


class BFloat16Quantizer:
    """Half the bytes of float32."""

    name = "bf16"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Round one float32 weight `[out, in]` to bfloat16."""
        return pack_native(weight, Format.BFLOAT16) or BFloat16Matrix(weight)


class Int8Quantizer:
    """A quarter of the bytes of float32."""

    name = "int8"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Round one float32 weight `[out, in]` to int8."""
        return pack_native(weight, Format.INT8) or Int8Matrix(weight)

    def pack_codes(self, weight: CodedWeight) -> WeightMatrix | None:
        """The codes of a file, in whatever number of bits."""
        return pack_native_codes(weight)


class Int4Quantizer:
    """Five bits a weight for projections; vocabulary matrices, and shapes that do not fit, in int8."""

    name = "int4"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Round one float32 weight `[out, in]` to int4."""
        out, inputs = weight.shape
        if _is_vocabulary(weight):
            return Int8Quantizer().pack(weight)
        native = pack_native(weight, Format.INT4)
        if native is not None:
            return native
        return Int8Matrix(weight) if inputs % INT4_GROUP or out % 16 else Int4Matrix(weight)

    def pack_codes(self, weight: CodedWeight) -> WeightMatrix | None:
        """The codes of a file, if they have 4 bits or are a vocabulary's."""
        return pack_native_codes(weight) if weight.bits == 4 or _is_vocabulary(weight.codes) else None


def _is_vocabulary(weight: Tensor) -> bool:
    out, inputs = weight.shape
    return out > _TALL * inputs

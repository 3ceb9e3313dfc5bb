"""Codes and scales that come from a file lie in panels unchanged, on every instruction set."""

from __future__ import annotations

from ctypes import CDLL

import pytest
import torch
from torch import Tensor

from ssd_kernels.cpu.coded import CodedWeight
from ssd_kernels.cpu.matrix import Format, NativeMatrix

GROUP_SIZES = {Format.INT8: 32, Format.INT4: 32, Format.INT4_WIDE: 32, Format.INT8_FINE: 16}
WIDE = (Format.INT4_WIDE, Format.INT8_FINE)


def coded(kind: Format, out: int, inputs: int) -> CodedWeight:
    """Every code there is, and factors that the format holds exactly."""
    generator = torch.Generator().manual_seed(out)
    with_minima = kind in (Format.INT4, Format.INT4_WIDE)

    def factors() -> Tensor:
        numbers = torch.randn(out, inputs // GROUP_SIZES[kind], generator=generator)
        return numbers if kind in WIDE else numbers.half().float()

    low, high, dtype = (0, 16, torch.uint8) if with_minima else (-128, 128, torch.int8)
    codes = torch.randint(low, high, (out, inputs), generator=generator).to(dtype)
    return CodedWeight(codes, factors(), factors() if with_minima else None)


@pytest.mark.parametrize("kind", GROUP_SIZES, ids=lambda kind: kind.name.lower())
@pytest.mark.parametrize(("out", "inputs"), [(1, 32), (23, 64), (24, 96), (49, 160), (100, 256)])
def test_codes_are_kept_and_multiplied(native: CDLL, kind: Format, out: int, inputs: int) -> None:
    """`dense` is code · scale + minimum to the last bit, and products are with it."""
    weight = coded(kind, out, inputs)
    values = weight.codes.float().view(out, -1, weight.group_size) * weight.scales[..., None]
    if weight.minima is not None:
        values = values + weight.minima[..., None]
    matrix = NativeMatrix(weight, kind, native)
    assert torch.equal(matrix.dense(), values.flatten(1))
    # integers up to 127, which every group has, are not rounded
    x = torch.randint(-127, 128, (7, inputs), generator=torch.Generator().manual_seed(3)).float()
    x[:, ::32] = 127
    exact = x.double() @ values.flatten(1).double().t()
    magnitudes = x.double().abs() @ (values.flatten(1).abs().double().t() + 64)
    assert ((matrix(x) - exact).abs() <= 2e-6 * magnitudes).all()

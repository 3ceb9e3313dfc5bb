"""A weight matrix as the decoder uses it; what a quantizer makes out of a float32 weight."""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from ssd_kernels.cpu.coded import CodedWeight
from ssd_kernels.cpu.matrix import Format, NativeMatrix, pack_native
from ssd_runtime.errors import NotAvailableError

ROW_TILE = 8
"""Plain products are made over a multiple of this many rows; see `pad_rows`."""

FAST_ROWS = 4
"""See `PackedMatrix`."""


class WeightMatrix(Protocol):
    """A weight of shape `[out, in]`, in whatever precision.

    Contract (batch invariance): row i of `matrix(x)` depends on row i of `x` alone, to the last
    bit, whatever the number of rows and whatever stands in the other rows.

    It is on the CPU. With a method `to(device) -> WeightMatrix` it can be had on a GPU, see `moved`.
    """

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` float32 → `[N, out]` float32."""
        ...


class Quantizer(Protocol):
    """Turns float32 weights into `WeightMatrix` objects; a plugin kind."""

    name: str

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Pack one float32 weight `[out, in]`; the caller drops its reference afterwards."""
        ...


@runtime_checkable
class CodeQuantizer(Quantizer, Protocol):
    """A quantizer that can also take the codes of a file as they are."""

    def pack_codes(self, weight: CodedWeight) -> WeightMatrix | None:
        """Pack a weight without rounding it; None to be given its float32 values by `pack` instead."""
        ...


def moved(matrix: WeightMatrix, device: torch.device) -> WeightMatrix:
    """`matrix` on `device`, by its own method `to`, or as plain floats.

    Raises `NotAvailableError` for quantized weights without that method.
    """
    move = getattr(matrix, "to", None)
    if move is not None:
        return cast(WeightMatrix, move(device))
    if device.type == "cpu":
        return matrix
    if isinstance(matrix, NativeMatrix) and matrix.dtype is not None:
        return PlainMatrix(matrix.dense().to(device, matrix.dtype))
    raise NotAvailableError(
        f"weights in the format of {type(matrix).__name__} are not available on {device}; set "
        "engine.quantization and engine.draft_quantization to none or bf16, or the placement to cpu"
    )


def pad_rows(x: Tensor) -> Tensor:
    """`x` `[N, in]` with zero rows appended up to a multiple of `ROW_TILE`.

    CPU libraries choose another kernel, with another order of summation, for the last few rows
    of a product. With whole tiles only, every row takes the same path.
    """
    missing = -len(x) % ROW_TILE
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


class PlainMatrix:
    """A weight as it is, float32 or bfloat16, for GPUs and for PyTorch builds without oneDNN."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight.clone()
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        return functional.linear(pad_rows(x).to(self.weight.dtype), self.weight)[: len(x)].float()

    def to(self, device: torch.device) -> PlainMatrix:
        """See `moved`."""
        return self if device == self.weight.device else PlainMatrix(self.weight.to(device))


class PackedMatrix:
    """A float32 weight in oneDNN's blocked layout.

    Faster than `PlainMatrix` (2.5 times for one row of SmolLM2). A single row would take a path of its
    own, with another order of summation, and fewer than `FAST_ROWS` rows a slow one (on one core 51 ms
    for one row of SmolLM2, 38 ms for four), so both are padded.
    """

    def __init__(self, weight: Tensor) -> None:
        # the second argument is the number of rows that the layout is chosen for
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROW_TILE)
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        padded = functional.pad(x, (0, 0, 0, FAST_ROWS - len(x))) if len(x) < FAST_ROWS else x
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, self._packed, None, "none", [], "")
        return product[: len(x)]

    def to(self, device: torch.device) -> PackedMatrix | PlainMatrix:
        """See `moved`; the layout is the CPU's own."""
        return self if device.type == "cpu" else PlainMatrix(self._packed.to_dense().to(device))


class Float32Quantizer:
    """No quantization: the reference that the others are measured against."""

    name = "none"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Copy one float32 weight `[out, in]` into the layout that multiplies fastest."""
        native = pack_native(weight, Format.FLOAT32)
        if native is not None:
            return native
        return PackedMatrix(weight) if _has_onednn() else PlainMatrix(weight)


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


class TiledMatrix:
    """Any matrix, applied to `ROW_TILE` rows at a time: slow, and a row is its own by construction."""

    def __init__(self, matrix: WeightMatrix) -> None:
        self.matrix = matrix
        self.nbytes = matrix.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        tiles = [self.matrix(tile) for tile in torch.split(pad_rows(x), ROW_TILE)]
        return torch.cat(tiles)[: len(x)]

    def to(self, device: torch.device) -> TiledMatrix:
        """See `moved`."""
        return TiledMatrix(moved(self.matrix, device))

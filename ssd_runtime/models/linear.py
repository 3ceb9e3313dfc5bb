"""A weight matrix as the decoder uses it; what a quantizer makes out of a float32 weight."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

ROW_TILE = 8
"""Products are made over a multiple of this many rows; see `pad_rows`."""


class WeightMatrix(Protocol):
    """A weight of shape `[out, in]`, in whatever precision.

    Contract (batch invariance): row i of `matrix(x)` depends on row i of `x` alone, to the last
    bit, whatever the number of rows and whatever stands in the other rows.
    """

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor:
        """`x` `[N, in]` float32 → `[N, out]` float32."""
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """The rows `ids` `[N]` of the weight, float32 `[N, in]` (an embedding look-up)."""
        ...


class Quantizer(Protocol):
    """Turns float32 weights into `WeightMatrix` objects; a plugin kind."""

    name: str

    def pack(self, weight: Tensor) -> WeightMatrix:
        """Pack one float32 weight `[out, in]`; the caller drops its reference afterwards."""
        ...


def pad_rows(x: Tensor) -> Tensor:
    """`x` `[N, in]` with zero rows appended up to a multiple of `ROW_TILE`.

    CPU libraries choose another kernel, with another order of summation, for the last few rows
    of a product. With whole tiles only, every row takes the same path.
    """
    missing = -len(x) % ROW_TILE
    return functional.pad(x, (0, 0, 0, missing)) if missing else x


class Float32Matrix:
    """A float32 weight as it is."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.nbytes = weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        return functional.linear(pad_rows(x), self.weight)[: len(x)]

    def rows(self, ids: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        return self.weight.index_select(0, ids)


class Float32Quantizer:
    """No quantization: the reference that the others are measured against."""

    name = "none"

    def pack(self, weight: Tensor) -> Float32Matrix:
        """Keep `weight`, in memory of its own or mapped from a file."""
        return Float32Matrix(weight)


class TiledMatrix:
    """Any matrix, applied to `ROW_TILE` rows at a time: slow, and a row is its own by construction."""

    def __init__(self, matrix: WeightMatrix) -> None:
        self.matrix = matrix
        self.nbytes = matrix.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        tiles = [self.matrix(tile) for tile in torch.split(pad_rows(x), ROW_TILE)]
        return torch.cat(tiles)[: len(x)]

    def rows(self, ids: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        return self.matrix.rows(ids)

"""A weight matrix as the decoder uses it; what a quantizer makes out of a float32 weight."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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

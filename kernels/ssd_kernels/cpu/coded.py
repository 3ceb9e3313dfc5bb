"""A weight that comes as integer codes with scales: what files keep in blocks, without their packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class CodedWeight:
    """A weight `[out, in]`: each value is code · scale + minimum, products and sums in float32.

    codes: `[out, in]`, int8, or uint8 of 0 … 15. scales and minima (None: zero): float32 `[out, groups]`,
    each for in / groups adjacent inputs of its output.
    """

    codes: Tensor
    scales: Tensor
    minima: Tensor | None = None

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.codes.dtype is torch.int8 else 4

    @property
    def group_size(self) -> int:
        """How many inputs share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def is_finite(self) -> bool:
        """Whether no scale or minimum is infinite or NaN."""
        return all(bool(part.isfinite().all()) for part in self._factors())

    def is_exact_in(self, dtype: torch.dtype) -> bool:
        """Whether all scales and minima can be stored as `dtype`."""
        return all(torch.equal(part.to(dtype).float(), part) for part in self._factors())

    def _factors(self) -> tuple[Tensor, ...]:
        return (self.scales,) if self.minima is None else (self.scales, self.minima)


def joined(parts: Sequence[CodedWeight]) -> CodedWeight | None:
    """The weights one below the other; None where their codes or groups are of different kinds."""
    if len({(part.codes.dtype, part.minima is None, part.group_size) for part in parts}) != 1:
        return None
    minima = [part.minima for part in parts if part.minima is not None]
    return CodedWeight(
        torch.cat([part.codes for part in parts]),
        torch.cat([part.scales for part in parts]),
        torch.cat(minima) if minima else None,
    )

"""Weights in one of the native library's formats, whatever a quantizer would choose; for tests."""

from __future__ import annotations

from torch import Tensor

from ssd_kernels.cpu.matrix import Format, NativeMatrix, pack_native


class InPanels:
    """A quantizer that packs every matrix in one format, the vocabulary's too. Needs the native library."""

    def __init__(self, kind: Format) -> None:
        self.kind, self.name = kind, kind.name.lower()

    def pack(self, weight: Tensor) -> NativeMatrix:
        """See `Quantizer.pack`."""
        packed = pack_native(weight, self.kind)
        assert packed is not None
        return packed

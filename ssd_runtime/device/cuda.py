"""CUDA devices behind the protocol of `streams.py`; the only place that calls `torch.cuda`."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ssd_runtime.device.streams import Stream
from ssd_runtime.errors import ConfigError


def require_device(name: str) -> torch.device:
    """The device called `name`, as `cuda:0`. Raises `ConfigError` where it does not exist."""
    if not torch.cuda.is_available():
        raise ConfigError(
            f"{name!r} needs a GPU and a build of PyTorch with CUDA; this machine's PyTorch "
            f"({torch.__version__}) finds none; expected auto, cpu:N or cpu:N-M"
        )
    device = torch.device(name)
    count = torch.cuda.device_count()
    if device.index is None or device.index >= count:
        there = ", ".join(f"cuda:{i}" for i in range(count))
        raise ConfigError(f"{name!r} is not there; available: {there}")
    return device


class CudaBackend:
    """One CUDA device. Streams are torch's own, which have the protocol's methods already."""

    def __init__(self, name: str) -> None:
        """Raises `ConfigError` for a device that does not exist."""
        self.device = require_device(name)

    def new_stream(self) -> Stream:
        """A stream from torch's pool; none of them waits for the default stream."""
        return cast(Stream, torch.cuda.Stream(self.device))  # type: ignore[no-untyped-call]

    def current_stream(self) -> Stream:
        """The calling thread's stream on this device."""
        return cast(Stream, torch.cuda.current_stream(self.device))

    def set_stream(self, stream: Stream) -> None:
        """Make `stream` and its device the calling thread's own."""
        torch.cuda.set_device(self.device)
        torch.cuda.set_stream(_native(stream))

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """See `Backend.pinned_like`."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def device_like(self, tensor: Tensor) -> Tensor:
        """See `Backend.device_like`."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=self.device)

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """See `Backend.copy`."""
        with torch.cuda.stream(_native(stream)):
            target.copy_(source, non_blocking=True)


def _native(stream: Stream) -> Any:
    """The protocol hides that these streams are torch's."""
    return stream

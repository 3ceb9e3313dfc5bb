"""The one way between host memory and a lane's device.

Two rules keep it right. A copy's host memory is pinned for this copy alone, so that nothing rewrites
what a copy may still read. Whatever a copy reads or writes is kept until an event behind it has fired,
so that its memory is not handed out again.

A pass on a stream: `up` its inputs, compute, `down` its results. Uploads are queued in the lane's
compute stream; results come back in its copy stream, behind an event of the compute stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_runtime.device.placement import CPU
from ssd_runtime.device.streams import Backend, Event


class HostTransfer:
    """The CPU's own memory: nothing moves, and every operation is done when its call returns."""

    device = torch.device(CPU)

    def bind(self) -> None:
        """See `StreamTransfer.bind`; a CPU has no streams."""

    @contextmanager
    def use(self) -> Iterator[None]:
        """See `StreamTransfer.use`."""
        yield

    def up(self, host: Tensor) -> Tensor:
        """The tensor itself."""
        return host

    def down(self, result: Tensor) -> Tensor:
        """The tensor itself."""
        return result


@dataclass(frozen=True, slots=True)
class Download:
    """A result on its way: the device tensor, the host tensor, and the event between them."""

    source: Tensor
    host: Tensor
    event: Event

    def wait(self) -> Tensor:
        """The host tensor, once it holds the result; waits for this copy and for nothing else."""
        self.event.synchronize()
        return self.host


class StreamTransfer:
    """A lane's compute stream and copy stream on one device. One thread at a time uses it."""

    def __init__(self, backend: Backend) -> None:
        self.device = backend.device
        self._backend = backend
        self._compute = backend.new_stream()
        self._copies = backend.new_stream()
        self._in_flight: deque[tuple[Event, tuple[Tensor, ...]]] = deque()

    def bind(self) -> None:
        """Queue the calling thread's operations in the compute stream from now on."""
        self._backend.set_stream(self._compute)

    @contextmanager
    def use(self) -> Iterator[None]:
        """Queue the calling thread's operations in the compute stream meanwhile."""
        before = self._backend.current_stream()
        self.bind()
        try:
            yield
        finally:
            self._backend.set_stream(before)

    def up(self, host: Tensor) -> Tensor:
        """`host` on the device, for operations that the calling thread queues from now on.

        `host` may be rewritten as soon as this returns.
        """
        self._expect_bound()
        staging = self._backend.pinned_like(host)
        staging.copy_(host)
        target = self._backend.device_like(host)
        self._backend.copy(target, staging, self._compute)
        self._keep(self._compute.record_event(), staging)
        return target

    def start_down(self, result: Tensor) -> Download:
        """Begin to bring `result` to the host, after what is queued so far; `result` is not rewritten."""
        self._expect_bound()
        host = self._backend.pinned_like(result)
        self._copies.wait_event(self._compute.record_event())
        self._backend.copy(host, result, self._copies)
        event = self._copies.record_event()
        self._keep(event, result, host)
        return Download(result, host, event)

    def down(self, result: Tensor) -> Tensor:
        """`result` in host memory; blocks until it is there."""
        return self.start_down(result).wait()

    def _keep(self, event: Event, *tensors: Tensor) -> None:
        while self._in_flight and self._in_flight[0][0].query():
            self._in_flight.popleft()
        self._in_flight.append((event, tensors))

    def _expect_bound(self) -> None:
        if self._backend.current_stream() != self._compute:
            raise RuntimeError(
                f"a pass on {self.device} ran outside its lane's compute stream; use the lane's own decoder"
            )


Transfer = HostTransfer | StreamTransfer

HOST = HostTransfer()


def open_transfer(device: str) -> Transfer:
    """The way to `device`: `cpu`, or `cuda:N` with two streams of its own. Raises `ConfigError`."""
    if device == CPU:
        return HOST
    from ssd_runtime.device.cuda import CudaBackend

    return StreamTransfer(CudaBackend(device))

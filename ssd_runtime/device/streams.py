"""What the lanes need of a device with queues of its own: streams, events, and copies between memories.

A CPU lane has none of this: there every operation is done when its call returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Event(Protocol):
    """A place in a stream: what was queued before it has been done once the event has fired."""

    def query(self) -> bool:
        """Whether it has fired; does not wait."""
        ...

    def synchronize(self) -> None:
        """Block the calling thread until it has fired."""
        ...


class Stream(Protocol):
    """A queue of operations that the device carries out in order; the names are torch's."""

    def record_event(self) -> Event:
        """An event behind everything queued so far."""
        ...

    def wait_event(self, event: Event) -> None:
        """Whatever is queued from now on starts after `event` has fired; does not block the caller."""
        ...


class Backend(Protocol):
    """One device: makes streams, memory and copies."""

    @property
    def device(self) -> torch.device: ...

    def new_stream(self) -> Stream:
        """A stream that no other stream waits for of itself."""
        ...

    def current_stream(self) -> Stream:
        """The stream in which the calling thread's operations are queued."""
        ...

    def set_stream(self, stream: Stream) -> None:
        """Queue the calling thread's operations in `stream` from now on."""
        ...

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """Fresh page-locked host memory of the shape and type of `tensor`, not initialised."""
        ...

    def device_like(self, tensor: Tensor) -> Tensor:
        """Fresh device memory, not initialised, which belongs to the current stream."""
        ...

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """Queue a copy in `stream`. The caller keeps both tensors until an event behind it has fired."""
        ...

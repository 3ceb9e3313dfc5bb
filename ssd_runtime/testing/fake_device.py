"""A device without hardware: its operations are done late, in any order that streams and events allow.

What is queued waits until somebody waits for it, or until the device feels like it; `choose` decides,
so a test can try every order. No operation, and no access of the host inside `watch`, may overtake an
earlier one that uses the same memory, unless both only read: that raises `HazardError`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from ssd_runtime.device.streams import Event, Stream

Choose = Callable[[int], int]
"""`choose(n)` is one of 0 … n − 1. Always 0: the device does nothing before somebody waits for it."""

_Memory = frozenset[int]


class HazardError(Exception):
    """Memory was read before it was written, rewritten before it was read, or released too early."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One entry of a stream's queue, and the memory that it uses."""

    name: str
    run: Callable[[], object]
    ready: Callable[[], bool] = lambda: True
    reads: _Memory = frozenset()
    writes: _Memory = frozenset()

    def conflicts(self, other: _Step) -> bool:
        """Whether the two give another result in the other order."""
        return bool(self.writes & (other.reads | other.writes) or self.reads & other.writes)


class FakeEvent:
    """See `Event`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.fired = False

    def fire(self) -> None:
        """Called by the device when it gets there."""
        self.fired = True

    def query(self) -> bool:
        """See `Event.query`."""
        self._device.work()
        return self.fired

    def synchronize(self) -> None:
        """See `Event.synchronize`. Raises `RuntimeError` for an event that can never fire."""
        while not self.fired:
            if not self._device.step():
                raise RuntimeError("the device has nothing left to do, and the event has not fired")


class FakeStream:
    """See `Stream`."""

    def __init__(self, device: FakeDevice) -> None:
        self._device = device
        self.steps: deque[_Step] = deque()

    def record_event(self) -> FakeEvent:
        """See `Stream.record_event`."""
        event = FakeEvent(self._device)
        self._device.queue(self, _Step("event", event.fire))
        return event

    def wait_event(self, event: Event) -> None:
        """See `Stream.wait_event`."""
        assert isinstance(event, FakeEvent)
        self._device.queue(self, _Step("wait", lambda: None, ready=lambda: event.fired))


class FakeDevice:
    """See `Backend`. One thread uses it; memory is poisoned until it is written."""

    device = torch.device("cpu")

    def __init__(self, choose: Choose) -> None:
        self._choose = choose
        self._streams: list[FakeStream] = []
        self._pending: list[_Step] = []
        self._owners = WeakTensorKeyDictionary()
        self._is_working = False
        self._current = self.new_stream()

    def new_stream(self) -> FakeStream:
        """See `Backend.new_stream`."""
        return self.add_stream(FakeStream(self))

    def add_stream(self, stream: FakeStream) -> FakeStream:
        """Serve `stream` too; returns it."""
        self._streams.append(stream)
        return stream

    def current_stream(self) -> FakeStream:
        """See `Backend.current_stream`."""
        return self._current

    def set_stream(self, stream: Stream) -> None:
        """See `Backend.set_stream`."""
        assert isinstance(stream, FakeStream)
        self._current = stream

    def pinned_like(self, tensor: Tensor) -> Tensor:
        """See `Backend.pinned_like`."""
        with self._unwatched():
            return torch.full_like(tensor, _poison(tensor.dtype))

    def device_like(self, tensor: Tensor) -> Tensor:
        """See `Backend.device_like`."""
        fresh = self.pinned_like(tensor)
        self._owners[fresh] = self._current
        return fresh

    def copy(self, target: Tensor, source: Tensor, stream: Stream) -> None:
        """See `Backend.copy`. Only memory of `stream` itself is kept for it: streams reuse their own."""
        assert isinstance(stream, FakeStream)
        held_target, held_source = self._hold(target, stream), self._hold(source, stream)

        def run() -> None:
            held = held_target(), held_source()
            if held[0] is None or held[1] is None:
                raise HazardError("the memory of a copy was released before the copy was done")
            held[0].copy_(held[1])

        self.queue(stream, _Step("copy", run, reads=self._memory(source), writes=self._memory(target)))

    def launch(self, operation: Callable[..., Tensor], target: Tensor, *inputs: Tensor) -> None:
        """Queue `target[:] = operation(*inputs)`, all of it device memory, in the current stream."""
        step = _Step(
            "launch",
            lambda: target.copy_(operation(*inputs)),
            reads=self._memory(*inputs),
            writes=self._memory(target),
        )
        self.queue(self._current, step)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Check what torch reads and writes meanwhile on the host against what is queued."""
        with _HostAccess(self):
            yield

    def queue(self, stream: FakeStream, step: _Step) -> None:
        """Append `step` to `stream`, and work a little if the device feels like it."""
        stream.steps.append(step)
        self._pending.append(step)
        self.work()

    def work(self) -> None:
        """Carry out as many steps as the device feels like: perhaps none."""
        while self._choose(2) and self.step():
            pass

    def run_all(self) -> None:
        """Carry out everything that can be."""
        while self.step():
            pass

    def step(self) -> bool:
        """Carry out the next step of one stream that has any; False if none has."""
        ready = [stream for stream in self._streams if stream.steps and stream.steps[0].ready()]
        if not ready:
            return False
        step = ready[self._choose(len(ready)) if len(ready) > 1 else 0].steps.popleft()
        at = self._pending.index(step)
        self._check(step, self._pending[:at])
        del self._pending[at]
        with self._unwatched():
            step.run()
        return True

    def host_access(self, name: str, reads: list[Tensor], writes: list[Tensor]) -> None:
        """Raise `HazardError` if the host may not use this memory now."""
        if not self._is_working:
            access = _Step(
                f"{name} on the host", lambda: None, reads=self._memory(*reads), writes=self._memory(*writes)
            )
            self._check(access, self._pending)

    def _check(self, step: _Step, earlier: list[_Step]) -> None:
        for other in earlier:
            if step.conflicts(other):
                raise HazardError(f"{step.name} overtakes an earlier {other.name} on the same memory")

    def _hold(self, tensor: Tensor, stream: FakeStream) -> Callable[[], Tensor | None]:
        is_own = tensor in self._owners and self._owners[tensor] is stream
        return (lambda: tensor) if is_own else weakref.ref(tensor)

    def _memory(self, *tensors: Tensor) -> _Memory:
        """What tells overlapping tensors apart from others; empty ones overlap nothing."""
        with self._unwatched():
            storages = [tensor.untyped_storage() for tensor in tensors]
            return frozenset(storage.data_ptr() for storage in storages if storage.nbytes())

    @contextmanager
    def _unwatched(self) -> Iterator[None]:
        before, self._is_working = self._is_working, True
        try:
            yield
        finally:
            self._is_working = before


class _HostAccess(TorchFunctionMode):
    """Tells the device about every tensor that torch is called with, and whether it is written."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Attributes (`shape`, `dtype`) touch no memory; names like `copy_` write their first argument."""
        named = kwargs or {}
        if func.__name__ != "__get__":
            tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
            is_write = func.__name__ == "__setitem__" or func.__name__[-1:] == "_" != func.__name__[-2:-1]
            written = tensors[:1] if is_write else [named["out"]] if "out" in named else []
            self._device.host_access(func.__name__, tensors, written)
        return func(*args, **named)


def _poison(dtype: torch.dtype) -> float | int | bool:
    """A value that no test computes."""
    if dtype == torch.bool:
        return True
    return torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max

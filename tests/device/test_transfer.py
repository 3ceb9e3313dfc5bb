"""Copies between memories: right in every order in which a device may do its work, and never by luck."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import find, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_runtime.device.streams import Event
from ssd_runtime.device.transfer import HOST, Download, StreamTransfer
from ssd_runtime.testing.fake_device import Choose, FakeDevice, FakeStream, HazardError

INPUTS = ([1.0, 2.0], [3.0, 5.0], [7.0, 11.0])
LOGITS = [[10.0, 20.0], [40.0, 70.0], [110.0, 180.0]]
"""Ten times the sum of the inputs so far, which is the state that stays on the device."""

ORDERS = st.lists(st.integers(0, 5), max_size=80)
"""What the device does whenever it has a choice; afterwards, nothing before somebody waits for it."""

LAZY: Sequence[int] = ()

REPEATABLE = settings(derandomize=True, database=None, deadline=None)


def following(order: Sequence[int]) -> Choose:
    choices = iter(order)
    return lambda n: next(choices, 0) % n


def rounds(device: FakeDevice, transfer: StreamTransfer) -> list[list[float]]:
    """Verify-like: inputs up, compute, results down, and the next inputs up while those are on their way.

    The host writes all inputs into one buffer of its own.
    """
    with device.watch(), transfer.use():
        buffer = torch.empty(2)
        state = device.device_like(buffer)
        device.launch(lambda: torch.zeros(2), state)
        downloads = [_round(device, transfer, buffer, state, values) for values in INPUTS]
        return [download.wait().tolist() for download in downloads]


def _round(
    device: FakeDevice, transfer: StreamTransfer, buffer: Tensor, state: Tensor, values: list[float]
) -> Download:
    buffer.copy_(torch.tensor(values))
    inputs = transfer.up(buffer)
    device.launch(torch.add, state, state, inputs)
    logits = device.device_like(buffer)
    device.launch(lambda total: 10 * total, logits, state)
    return transfer.start_down(logits)


@settings(deadline=None)
@given(order=ORDERS)
def test_every_order_gives_the_same_results(order: Sequence[int]) -> None:
    """Whatever the device does first, nothing is read too early or rewritten too late."""
    device = FakeDevice(following(order))
    assert rounds(device, StreamTransfer(device)) == LOGITS


@settings(deadline=None)
@given(order=ORDERS)
def test_two_lanes_on_one_device_leave_each_other_alone(order: Sequence[int]) -> None:
    """Lane by lane, step by step: each has its own streams, and its results are its own."""
    device = FakeDevice(following(order))
    lanes = [StreamTransfer(device), StreamTransfer(device)]
    states, results = [torch.zeros(2), torch.ones(2)], []
    with device.watch():
        for transfer, host in zip(lanes, states, strict=True):
            with transfer.use():
                doubled = device.device_like(host)
                device.launch(lambda x: 2 * x + 1, doubled, transfer.up(host))
                results.append(transfer.start_down(doubled))
            host.fill_(-1)
        assert [result.wait().tolist() for result in reversed(results)] == [[3.0, 3.0], [1.0, 1.0]]


@settings(deadline=None)
@given(order=ORDERS)
def test_waiting_for_one_result_asks_for_nothing_behind_it(order: Sequence[int]) -> None:
    """An event that stands before a blocked operation fires; only what is queued before it counts."""
    device = FakeDevice(following(order))
    transfer = StreamTransfer(device)
    with device.watch(), transfer.use():
        download = transfer.start_down(transfer.up(torch.tensor([4.0])))
        never = FakeStream(device).record_event()
        device.current_stream().wait_event(never)
        assert download.wait().tolist() == [4.0]
        with pytest.raises(RuntimeError, match="nothing left to do"):
            transfer.start_down(transfer.up(torch.tensor([5.0]))).wait()


class ReusedStaging(StreamTransfer):
    """Every upload goes through the same pinned memory."""

    _staging: Tensor | None = None

    def up(self, host: Tensor) -> Tensor:
        """Does not ask whether the copy before is done."""
        if self._staging is None:
            self._staging = self._backend.pinned_like(host)
        self._staging.copy_(host)
        target = self._backend.device_like(host)
        self._backend.copy(target, self._staging, self._compute)
        return target


class UnawaitedResults(StreamTransfer):
    """The host reads a result without waiting for its event."""

    def start_down(self, result: Tensor) -> Download:
        """The event is one that has fired already."""
        download = super().start_down(result)
        return Download(download.source, download.host, FiredEvent())


class FiredEvent:
    """See `Event`."""

    def query(self) -> bool:
        """At once."""
        return True

    def synchronize(self) -> None:
        """At once."""


class UnorderedCopies(StreamTransfer):
    """The copy stream does not wait for the compute stream."""

    def __init__(self, device: FakeDevice) -> None:
        super().__init__(device)
        self._copies = DeafStream(device)
        device.add_stream(self._copies)


class DeafStream(FakeStream):
    """A stream that waits for nobody."""

    def wait_event(self, event: Event) -> None:
        """Does not wait."""


class ForgottenMemory(StreamTransfer):
    """Nothing keeps the memory of copies that are on their way."""

    def _keep(self, event: Event, *tensors: Tensor) -> None:
        """Does not keep them."""


BROKEN = pytest.mark.parametrize(
    "broken",
    [ReusedStaging, UnawaitedResults, UnorderedCopies, ForgottenMemory],
    ids=lambda kind: kind.__name__,
)
Kind = Callable[[FakeDevice], StreamTransfer]


def outcome(broken: Kind, order: Sequence[int]) -> list[list[float]] | None:
    """The results; None if the mistake was noticed."""
    device = FakeDevice(following(order))
    try:
        return rounds(device, broken(device))
    except HazardError:
        return None


@BROKEN
def test_a_broken_lane_is_caught(broken: Kind) -> None:
    """Some order shows each mistake; `find` raises where it finds none."""
    find(ORDERS, lambda order: outcome(broken, order) is None, settings=REPEATABLE)


@BROKEN
@settings(deadline=None)
@given(order=ORDERS)
def test_no_order_lets_a_mistake_spoil_results_unnoticed(broken: Kind, order: Sequence[int]) -> None:
    """Either the order happened to be harmless and the results are right, or the mistake is named."""
    assert outcome(broken, order) in (LOGITS, None)


def test_a_result_that_is_rewritten_on_its_way_is_caught() -> None:
    """`start_down` promises the result that was there; the next pass must not write over it."""
    device = FakeDevice(following(LAZY))
    transfer = StreamTransfer(device)
    with device.watch(), transfer.use():
        result = transfer.up(torch.tensor([1.0]))
        download = transfer.start_down(result)
        device.launch(torch.zeros_like, result, result)
        with pytest.raises(HazardError, match="launch overtakes an earlier copy"):
            device.run_all()
        assert download.source is result


@pytest.mark.parametrize(
    "access",
    [
        lambda host: host.tolist(),
        lambda host: host.numpy(),
        lambda host: host[0].item(),
        lambda host: host.add_(1),
        lambda host: host.__setitem__(0, 1.0),
        lambda host: torch.add(host, 1),
        lambda host: torch.zeros(2, out=host),
    ],
    ids=["tolist", "numpy", "item", "in place", "item assignment", "function", "out"],
)
def test_every_way_to_touch_a_pending_result_is_seen(access: Callable[[Tensor], object]) -> None:
    """Reads and writes of host memory that a copy is still to fill; its shape may be asked for."""
    device = FakeDevice(following(LAZY))
    transfer = StreamTransfer(device)
    with device.watch(), transfer.use():
        download = transfer.start_down(transfer.up(torch.tensor([1.0, 2.0])))
        assert download.host.shape == (2,)
        with pytest.raises(HazardError, match=r"on the host overtakes an earlier copy"):
            access(download.host)
        download.wait()
        access(download.host)


def test_a_pass_outside_its_stream_is_refused() -> None:
    """Operations that are queued elsewhere would not be behind the uploads."""
    device = FakeDevice(following(LAZY))
    transfer = StreamTransfer(device)
    with pytest.raises(RuntimeError, match="outside its lane's compute stream"):
        transfer.up(torch.zeros(1))
    with transfer.use():
        result = transfer.up(torch.zeros(1))
    with pytest.raises(RuntimeError, match="outside its lane's compute stream"):
        transfer.down(result)
    transfer.bind()
    assert transfer.down(result).tolist() == [0.0]


def test_the_host_moves_nothing() -> None:
    """A CPU lane computes on the tensors as they are."""
    tensor = torch.zeros(1)
    with HOST.use():
        HOST.bind()
        assert HOST.up(tensor) is tensor
        assert HOST.down(tensor) is tensor

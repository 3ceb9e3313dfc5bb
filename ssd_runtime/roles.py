"""The two lanes' devices, cores and threads, and how each is started."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING

from ssd_runtime.clock import Clock
from ssd_runtime.device.cores import use_threads
from ssd_runtime.device.lane import CommandRecord, Lane, Worker
from ssd_runtime.device.placement import Places
from ssd_runtime.device.supply import LateWorker
from ssd_runtime.device.threads import ShareCores, shares

if TYPE_CHECKING:
    from ssd_runtime.device.transfer import Transfer


class Role:
    """One of the two. `together`: threads it may use while the other's lane works too."""

    def __init__(self, name: str, device: str, cores: frozenset[int], together: int) -> None:
        from ssd_runtime.device.transfer import open_transfer

        self.transfer: Transfer = open_transfer(device)
        self._name = name
        self._cores = cores
        self._together = together

    def starting(
        self,
        first: Worker,
        make: Callable[[], Worker],
        clock: Clock,
        on_record: Callable[[CommandRecord], None] | None,
        reserve: Callable[[], None],
    ) -> Callable[[], Lane]:
        """What starts the role's lane: with `first`, and every other time with a worker of its own.

        `reserve` takes the memory that a lane keeps for its passes, on the lane's thread.
        """
        workers = chain((first,), (LateWorker(make) for _ in count()))

        def start() -> Lane:
            return Lane(
                self._name,
                ShareCores(next(workers), alone=len(self._cores), together=self._together),
                clock=clock,
                cores=self._cores,
                setup=partial(_prepare_thread, len(self._cores), self.transfer, reserve),
                on_record=on_record,
            )

        return start


def roles(places: Places) -> tuple[Role, Role]:
    """The target's and the draft's; raises `ConfigError` for a device that is not there."""
    of_target, of_draft = shares(places.target, places.draft)
    return (
        Role("target", places.target_device, places.target, of_target),
        Role("draft", places.draft_device, places.draft, of_draft),
    )


def _prepare_thread(num_threads: int, transfer: Transfer, reserve: Callable[[], None]) -> None:
    """Runs on a lane's own thread, before its first command."""
    use_threads(num_threads)
    transfer.bind()
    reserve()

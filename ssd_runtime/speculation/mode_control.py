"""The mode of the moment: fixed, low-latency in a crowd, or the fastest for this many requests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import structlog

from ssd_runtime.speculation.hybrid import HybridController
from ssd_runtime.types import Mode, RowMode

log = structlog.get_logger(__name__)

STEADY_ROUNDS = 8
"""How many rounds in a row a load must be lower until it counts as such."""

DRAFTING = (RowMode.SPECULATIVE, RowMode.SSD)
IN_A_CROWD = (RowMode.LOW_LATENCY, RowMode.AUTOREGRESSIVE)


class ModeController(Protocol):
    """Says in which mode the next round runs, and hears how the last one went.

    looks_up: whether the low-latency mode, where it is on, asks anybody.
    """

    @property
    def mode(self) -> RowMode: ...
    @property
    def looks_up(self) -> bool: ...
    def note_load(self, num_requests: int) -> None: ...
    def note_round(self, tokens: int, seconds: float) -> None: ...


class FixedMode:
    """Always the same mode."""

    looks_up = True

    def __init__(self, mode: RowMode) -> None:
        self.mode = mode

    def note_load(self, num_requests: int) -> None:
        """It does not matter."""

    def note_round(self, tokens: int, seconds: float) -> None:
        """Nothing is learned."""


class Level:
    """A level of load: it rises at once, and falls when it was lower for `STEADY_ROUNDS` rounds in a row."""

    def __init__(self) -> None:
        self.value = 0
        self._rounds_below = 0

    def note(self, level: int, *, is_idle: bool) -> int:
        """The level of this round, given what it would be without memory; when idle it falls at once."""
        self._rounds_below = self._rounds_below + 1 if level < self.value else 0
        if level > self.value or is_idle or self._rounds_below >= STEADY_ROUNDS:
            self.value, self._rounds_below = level, 0
        return self.value


class LowLatencyAbove:
    """`mode` for up to `threshold` requests; above them the low-latency mode.

    There rounds with lookups are measured beside rounds without, and the faster are kept: in a large batch
    a guess may cost as much as a token.
    """

    def __init__(self, mode: RowMode, threshold: int) -> None:
        self._normal = mode
        self._threshold = threshold
        self._level = Level()
        self._crowded = HybridController(lambda: IN_A_CROWD)

    @property
    def mode(self) -> RowMode:
        """The mode of the next round."""
        return RowMode.LOW_LATENCY if self._level.value else self._normal

    @property
    def looks_up(self) -> bool:
        """See `ModeController`."""
        return self._crowded.mode is RowMode.LOW_LATENCY

    def note_load(self, num_requests: int) -> None:
        """So many requests run or wait."""
        before = self._level.value
        now = self._level.note(int(num_requests > self._threshold), is_idle=not num_requests)
        if now != before:
            log.info("low-latency mode", on=bool(now), requests=num_requests)

    def note_round(self, tokens: int, seconds: float) -> None:
        """See `ModeController`."""
        if self._level.value:
            self._crowded.note_round(tokens, seconds)


class HybridByLoad:
    """The fastest mode for each size of batch, by powers of two, so that the switch points are measured.

    Plain decoding, the low-latency mode and the drafting modes are the choice; the low-latency mode comes
    first above `threshold` requests, until something was measured. Where the drafting modes were slower in
    a smaller batch they are not tried in a larger one: there a guess costs more.
    """

    looks_up = True

    def __init__(self, threshold: int, max_batch_size: int) -> None:
        self._threshold = threshold
        self._max_batch_size = max_batch_size
        self._level = Level()
        self._controllers: dict[int, HybridController] = {}

    @property
    def mode(self) -> RowMode:
        """The mode of the next round."""
        return self._controller(self._level.value).mode

    def note_load(self, num_requests: int) -> None:
        """So many requests run or wait."""
        rows = min(num_requests, self._max_batch_size)
        self._level.note(max(0, rows - 1).bit_length(), is_idle=not num_requests)

    def note_round(self, tokens: int, seconds: float) -> None:
        """See `ModeController`."""
        self._controller(self._level.value).note_round(tokens, seconds)

    def _controller(self, level: int) -> HybridController:
        if level not in self._controllers:
            fewest = 2**level // 2 + 1
            self._controllers[level] = HybridController(
                partial(self._candidates, level), partial(self._costly, level), fewest
            )
        return self._controllers[level]

    def _candidates(self, level: int) -> Sequence[RowMode]:
        first, other = IN_A_CROWD if self._is_crowd(level) else IN_A_CROWD[::-1]
        drafting = () if self._fastest_below(level) in IN_A_CROWD else DRAFTING
        return (first, *drafting, other)  # where drafting pays, a look at the other one is soon over

    def _costly(self, level: int) -> Sequence[RowMode]:
        """A draft for a crowd may take long; up to the threshold, or where it paid for fewer, it is tried."""
        return DRAFTING if self._is_crowd(level) and self._fastest_below(level) is None else ()

    def _is_crowd(self, level: int) -> bool:
        return (1 << level) > self._threshold

    def _fastest_below(self, level: int) -> RowMode | None:
        """What was measured to be the fastest in the next smaller batch of which that is known."""
        known = {at: one.fastest for at, one in self._controllers.items() if at < level and one.fastest}
        return known[max(known)] if known else None


def make_controller(policy: Mode, *, threshold: int, max_batch_size: int) -> ModeController:
    """The controller of an engine with a draft, as its settings say."""
    match policy:
        case Mode.HYBRID:
            return HybridByLoad(threshold, max_batch_size)
        case Mode.AUTOREGRESSIVE:
            return FixedMode(RowMode.AUTOREGRESSIVE)
        case _:
            return LowLatencyAbove(RowMode(policy), threshold)

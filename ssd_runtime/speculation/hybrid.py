"""The mode of the moment under `policy: hybrid`: measure each, keep the fastest, look again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from ssd_runtime.types import Mode

log = structlog.get_logger(__name__)

PROBE_ROUNDS = 6
WARM_UP_ROUNDS = 2
FIRST_HOLD = 64
LONGEST_HOLD = 4096
ADVANTAGE = 1.03


class ModeController(Protocol):
    """Says in which mode the next round runs, and hears how the last one went."""

    @property
    def mode(self) -> Mode: ...
    def note_round(self, tokens: int, seconds: float) -> None: ...


class FixedMode:
    """Always the same mode."""

    def __init__(self, mode: Mode) -> None:
        self.mode = mode

    def note_round(self, tokens: int, seconds: float) -> None:
        """Nothing is learned."""


class HybridController:
    """Tries each of `modes` for a few rounds and holds the fastest; deterministic given its notes.

    A probe's first rounds are not counted: the mode before still shows in them. The hold doubles as
    long as the same mode wins, so that looking costs ever less. Another mode takes over only when
    it is faster by `ADVANTAGE`.
    """

    def __init__(self, modes: Sequence[Mode]) -> None:
        """`modes`: the candidates; the first one serves until something was measured."""
        self._modes = tuple(modes)
        self._held = self._modes[0]
        self._hold = FIRST_HOLD
        self._rates: dict[Mode, float] = {}
        self._to_probe = list(self._modes)
        self._rounds = 0
        self._tokens = 0
        self._seconds = 0.0

    @property
    def mode(self) -> Mode:
        """The mode of the next round."""
        return self._to_probe[0] if self._to_probe else self._held

    def note_round(self, tokens: int, seconds: float) -> None:
        """A decoding round in `mode` emitted so many tokens in so many seconds."""
        self._rounds += 1
        if not self._to_probe:
            self._look_again()
        elif self._rounds > WARM_UP_ROUNDS:
            self._tokens += tokens
            self._seconds += seconds
            if self._rounds >= WARM_UP_ROUNDS + PROBE_ROUNDS:
                self._end_probe()

    def _look_again(self) -> None:
        if self._rounds >= self._hold:
            self._rounds = 0
            self._to_probe = list(self._modes)

    def _end_probe(self) -> None:
        self._rates[self._to_probe.pop(0)] = self._tokens / max(self._seconds, 1e-9)
        self._rounds, self._tokens, self._seconds = 0, 0, 0.0
        if not self._to_probe:
            self._choose()

    def _choose(self) -> None:
        best = max(self._modes, key=lambda mode: self._rates[mode])
        if best is not self._held and self._rates[best] > ADVANTAGE * self._rates[self._held]:
            self._held, self._hold = best, FIRST_HOLD
        else:
            self._hold = min(2 * self._hold, LONGEST_HOLD)
        rates = {mode.value: round(rate, 1) for mode, rate in self._rates.items()}
        log.debug("hybrid measured", tokens_per_second=rates, chosen=self._held.value, rounds=self._hold)

"""Which of several modes is the fastest: measured while they serve."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import structlog

from ssd_runtime.types import RowMode

log = structlog.get_logger(__name__)

LOOK_ROUNDS = 6
"""Rounds that a look counts, at most."""
WARM_UP_ROUNDS = 2
LOOK = WARM_UP_ROUNDS + LOOK_ROUNDS
HELD_ROUNDS = 32
"""Rounds by which the held mode is judged, the latest ones; so many lie between two looks, at least."""
FEWEST_ROUNDS = 2
HOPELESS = 0.6
"""A look ends after `FEWEST_ROUNDS` at a mode that is slower than this part of the one held."""
SHARE = 0.015
ADVANTAGE = 1.03


class Tally:
    """The latest rounds in one mode, `size` at most and without the first ones; and all of them in sum."""

    def __init__(self, size: int) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=size)
        self._size = size
        self.rounds_in_all = 0
        self.tokens_in_all = 0
        self.seconds_in_all = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """One more round."""
        self.rounds_in_all += 1
        self.tokens_in_all += tokens
        self.seconds_in_all += seconds
        if self.rounds_in_all > WARM_UP_ROUNDS:
            self._latest.append((tokens, seconds))

    @property
    def rounds(self) -> int:
        """How many count."""
        return len(self._latest)

    @property
    def is_full(self) -> bool:
        """Whether as many count as may."""
        return len(self._latest) == self._size

    @property
    def seconds(self) -> float:
        """Of the rounds that count."""
        return sum(seconds for _, seconds in self._latest)

    @property
    def rate(self) -> float:
        """Tokens a second, of the rounds that count."""
        return sum(tokens for tokens, _ in self._latest) / max(self.seconds, 1e-9)


class Look(NamedTuple):
    """When the last look at a mode ended, in seconds of decoding, and what it cost in seconds."""

    at: float
    cost: float


NEVER = Look(0.0, 0.0)


class LookingBudget:
    """What looking at other modes may cost: `SHARE` of all the time that decoding took, `seconds`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._spent = 0.0

    def note_round(self, seconds: float) -> None:
        """A round took so long."""
        self.seconds += seconds

    def spend(self, seconds: float) -> None:
        """A look has cost so much more than the mode that was held would have taken."""
        self._spent += seconds

    def allows(self, seconds: float) -> bool:
        """Whether a look that costs so much may begin."""
        return self._spent + seconds <= SHARE * self.seconds


class HybridController:
    """Holds the fastest mode and looks at the others now and then; deterministic given its notes.

    A look is a few rounds, of which the first are not counted: the mode before still shows in them. What it
    cost, in time that the held mode would have saved, says when the next one at that mode may be: so a mode
    that is nearly as fast is looked at often, and one that lost clearly hardly ever. Another mode takes over
    only when it is faster by `ADVANTAGE`.
    """

    def __init__(
        self,
        candidates: Callable[[], Sequence[RowMode]],
        budget: LookingBudget,
        costly: Collection[RowMode] = (),
    ) -> None:
        """`candidates`: asked before each look; the first one is held until something was measured.

        costly: the modes whose first look must be within the budget too. Any other is looked at at once.
        """
        self._candidates = candidates
        self._budget = budget
        self._costly = costly
        self._held = candidates()[0]
        self._looking_at: RowMode | None = None
        self._kept = Tally(HELD_ROUNDS)
        self._look = Tally(LOOK_ROUNDS)
        self._looks: dict[RowMode, Look] = {}

    @property
    def mode(self) -> RowMode:
        """The mode of the next round."""
        return self._held if self._looking_at is None else self._looking_at

    @property
    def fastest(self) -> RowMode | None:
        """What was measured to be so; None while a candidate was never looked at."""
        return None if self._untried() else self._held

    def note_round(self, tokens: int, seconds: float) -> None:
        """A decoding round in `mode` emitted so many tokens in so many seconds."""
        self._budget.note_round(seconds)
        if self._looking_at is not None:
            self._look.add(tokens, seconds)
            if self._look.is_full or self._is_hopeless():
                self._end_look(self._looking_at)
            return
        self._kept.add(tokens, seconds)
        if self._kept.rounds_in_all % LOOK == 0 and (self._kept.is_full or self._untried()):
            self._begin_look()

    def _others(self) -> list[RowMode]:
        return [mode for mode in self._candidates() if mode is not self._held]

    def _untried(self) -> list[RowMode]:
        return [mode for mode in self._others() if mode not in self._looks]

    def _begin_look(self) -> None:
        """At what was never looked at; else at the mode that has waited longest for what it costs."""
        for mode in self._untried():
            if mode not in self._costly:
                return self._look_at(mode)
        others = {mode: self._cost(mode) for mode in self._others()}
        if others:
            now = self._budget.seconds
            due = max(others, key=lambda mode: (now - self._looks.get(mode, NEVER).at) / others[mode])
            if self._budget.allows(others[due]):
                self._look_at(due)
        return None

    def _look_at(self, mode: RowMode) -> None:
        self._looking_at, self._look = mode, Tally(LOOK_ROUNDS)

    def _cost(self, mode: RowMode) -> float:
        """What a look may cost: what the last one did, a round at least; at first, all of its rounds."""
        one_round = self._kept.seconds / self._kept.rounds
        look = self._looks.get(mode)
        return max(LOOK_ROUNDS * one_round if look is None else look.cost, one_round, 1e-9)

    def _is_hopeless(self) -> bool:
        return self._look.rounds >= FEWEST_ROUNDS and self._look.rate < HOPELESS * self._kept.rate

    def _end_look(self, mode: RowMode) -> None:
        """Hold the mode if it is faster; else note what the look cost."""
        held, look, kept = self._held, self._look, self._kept
        cost = max(0.0, look.seconds_in_all - look.tokens_in_all / max(kept.rate, 1e-9))
        self._budget.spend(cost)
        self._looks[mode] = Look(self._budget.seconds, cost)
        self._looking_at, self._kept = None, Tally(HELD_ROUNDS)
        if look.rate > ADVANTAGE * kept.rate:
            self._held = mode
            self._looks[held] = Look(self._budget.seconds, 0.0)
        rates = {held.value: round(kept.rate, 1), mode.value: round(look.rate, 1)}
        log.debug("hybrid measured", tokens_per_second=rates, chosen=self._held.value)

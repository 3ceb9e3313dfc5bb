"""Which of several modes is the fastest: measured while they serve."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import structlog

from ssd_runtime.types import RowMode

log = structlog.get_logger(__name__)

WARM_UP_ROUNDS = 2
LOOK_ROUNDS = 16
"""Rounds that a look counts, at most."""
FIRST_ROUNDS = 6
"""Rounds of the first mode before another is looked at."""
HELD_ROUNDS = 64
"""Rounds by which a mode is judged, the latest ones."""
HOPELESS = {2: 0.6, 6: 0.85}
"""A look ends after so many rounds at a mode that is slower than this part of the one held."""
SHARE = 0.015
ADVANTAGE = 1.03


class Tally:
    """The latest rounds in one mode, `size` at most."""

    def __init__(self, size: int) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=size)

    def add(self, tokens: int, seconds: float) -> None:
        """One more round."""
        self._latest.append((tokens, seconds))

    def extend(self, other: Tally) -> None:
        """The rounds of `other`, later than these."""
        self._latest.extend(other._latest)

    @property
    def rounds(self) -> int:
        """How many there are."""
        return len(self._latest)

    @property
    def is_full(self) -> bool:
        """Whether there are as many as may be."""
        return len(self._latest) == self._latest.maxlen

    @property
    def seconds(self) -> float:
        """How long they took."""
        return sum(seconds for _, seconds in self._latest)

    @property
    def rate(self) -> float:
        """Tokens a second."""
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

    A look is a few rounds after two that are not counted: the mode before still shows in them. What it cost,
    in time that the held mode would have saved, says when the next one at that mode may be: so a mode that
    is nearly as fast is looked at often, and one that lost clearly hardly ever. What earlier looks found
    counts too. Another mode takes over only when it is faster by `ADVANTAGE`.
    """

    def __init__(
        self,
        candidates: Callable[[], Sequence[RowMode]],
        budget: LookingBudget,
        costly: Callable[[], Collection[RowMode]] = tuple,
    ) -> None:
        """`candidates`: asked before each look; the first one is held until something was measured.

        costly: says whose first look must be within the budget too. Any other mode is looked at at once.
        """
        self._candidates = candidates
        self._budget = budget
        self._costly = costly
        self._held = candidates()[0]
        self._looking_at: RowMode | None = None
        self._rounds = 0
        self._regret = 0.0
        self._look = Tally(LOOK_ROUNDS)
        self._tallies: dict[RowMode, Tally] = defaultdict(lambda: Tally(HELD_ROUNDS))
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
        self._rounds += 1
        kept, counts = self._tallies[self._held], self._rounds > WARM_UP_ROUNDS
        if self._looking_at is not None:
            self._regret += seconds - tokens / max(kept.rate, 1e-9)
            if counts:
                self._look.add(tokens, seconds)
            if self._look.is_full or self._is_hopeless(kept):
                self._end_look(self._looking_at)
        elif counts:
            kept.add(tokens, seconds)
            if self._rounds % (WARM_UP_ROUNDS + FIRST_ROUNDS) == 0 and (kept.is_full or self._untried()):
                self._begin_look()

    def _others(self) -> list[RowMode]:
        return [mode for mode in self._candidates() if mode is not self._held]

    def _untried(self) -> list[RowMode]:
        return [mode for mode in self._others() if mode not in self._looks]

    def _begin_look(self) -> None:
        """At what was never looked at; else at the mode that has waited longest for what it costs."""
        costly = self._costly()
        for mode in self._untried():
            if mode not in costly:
                return self._go(mode)
        others = {mode: self._cost(mode) for mode in self._others()}
        if others:
            now = self._budget.seconds
            due = max(others, key=lambda mode: (now - self._looks.get(mode, NEVER).at) / others[mode])
            if self._budget.allows(others[due]):
                self._go(due)
        return None

    def _go(self, mode: RowMode | None) -> None:
        """On to a look at `mode`, or back to the mode held."""
        self._looking_at, self._look = mode, Tally(LOOK_ROUNDS)
        self._rounds, self._regret = 0, 0.0

    def _cost(self, mode: RowMode) -> float:
        """What a look may cost, in seconds: what the last one did; at first, several rounds."""
        kept, look = self._tallies[self._held], self._looks.get(mode)
        return max(FIRST_ROUNDS * kept.seconds / kept.rounds if look is None else look.cost, 1e-9)

    def _is_hopeless(self, kept: Tally) -> bool:
        part = HOPELESS.get(self._look.rounds)
        return part is not None and self._look.rate < part * kept.rate

    def _end_look(self, mode: RowMode) -> None:
        """Hold the mode if it is faster; note what the look cost."""
        held, found, kept = self._held, self._tallies[mode], self._tallies[self._held]
        cost = max(self._regret, kept.seconds / kept.rounds)  # to go and to come back costs a round
        self._budget.spend(cost)
        self._looks[mode] = Look(self._budget.seconds, cost)
        found.extend(self._look)
        if found.rate > ADVANTAGE * kept.rate:
            self._held = mode
            self._looks[held] = Look(self._budget.seconds, cost)
        rates = {held.value: round(kept.rate, 1), mode.value: round(found.rate, 1)}
        log.debug("hybrid measured", tokens_per_second=rates, chosen=self._held.value)
        self._go(None)

"""Which of several modes is the fastest: measured while they serve."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

import structlog

from ssd_runtime.types import RowMode

log = structlog.get_logger(__name__)

WARM_UP_ROUNDS = 2
LOOK_ROUNDS = 16
"""Rounds of rows that a look counts, at most: in a round of many rows chance weighs less."""
LEAST_ROUNDS = 4
"""But so many rounds, whatever the rows."""
FIRST_ROUNDS = 6
"""Rounds of the first mode before another is looked at."""
HELD_ROUNDS = 32
"""Rounds of the mode held, the latest ones, that a look is compared with: a slow hour slows both."""
REMEMBERED_ROUNDS = 64
"""Rounds of looks by which a mode is judged, about: later ones count for more."""
HOPELESS = {2: 0.6, 6: 0.85}
"""A look ends after so many rounds of rows at a mode that is slower than this part of the one held."""
SHARE = 0.005
"""What looks at one mode may cost, as a part of the time since the last one."""
NEAR = 0.8
"""A mode that gave more than this part of what the one held gives is looked at sooner, the fewer rounds it
was seen for."""
FAR = 2.0
"""Any other mode waits so many times longer than for what a look costs: it must gain much to be of use."""
FALLEN = 0.5
"""Where the mode held gives less than this part of what it gave when it was last compared, it was luck, or
the work is another now."""
ADVANTAGE = 0.03
"""By how much another mode must be faster, beside the uncertainty of what was measured."""
UNCERTAINTY = 0.1
"""Of the rate of a single round; that of many falls with the root of their number."""


class Tally:
    """The latest rounds in one mode, `size` at most."""

    def __init__(self, size: int) -> None:
        self._latest: deque[tuple[int, float]] = deque(maxlen=size)

    def add(self, tokens: int, seconds: float) -> None:
        """One more round."""
        self._latest.append((tokens, seconds))

    def __iter__(self) -> Iterator[tuple[int, float]]:
        """The tokens and seconds of each."""
        return iter(self._latest)

    def latest(self, rounds: int) -> Tally:
        """One of the same size with no more than the last `rounds`."""
        tally = Tally(self._latest.maxlen or 0)
        for each in list(self._latest)[-rounds:]:
            tally.add(*each)
        return tally

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
        return max(sum(tokens for tokens, _ in self._latest), 1e-9) / max(self.seconds, 1e-9)


@dataclass(slots=True)
class Speed:
    """How fast a mode is beside the others, whatever the unit, from so many rounds."""

    value: float = 1.0
    rounds: int = 0

    def note(self, value: float, rounds: int) -> None:
        """So many more rounds say this."""
        self.rounds = min(self.rounds + rounds, REMEMBERED_ROUNDS)
        self.value += (value - self.value) * rounds / self.rounds


class Look(NamedTuple):
    """When the last look at a mode ended, in seconds of decoding, and what it cost in seconds."""

    at: float
    cost: float


class HybridController:
    """Holds the fastest mode and looks at the others now and then; deterministic given its notes.

    A look is a few rounds after two that are not counted: the mode before still shows in them. What it cost,
    in time that the held mode would have saved, says when the next one at that mode may be: so a mode that
    is nearly as fast is looked at often, and one that lost clearly hardly ever. Every look is compared with
    the rounds before it, and what earlier ones found counts too. Another mode takes over when it is clearly
    faster; when the mode held has become slow, the best of the others is looked at without delay.
    """

    def __init__(
        self,
        candidates: Callable[[], Sequence[RowMode]],
        costly: Callable[[], Collection[RowMode]] = tuple,
        rows: int = 1,
    ) -> None:
        """`candidates`: asked before each look; the first one is held until something was measured.

        costly: says whose first look must wait for what it may cost. Any other mode is looked at at once.
        rows: in each round, about.
        """
        self._candidates = candidates
        self._seconds = 0.0
        self._costly = costly
        self._hopeless = {ceil(rounds / rows): part for rounds, part in HOPELESS.items()}
        self._look_rounds = max(LEAST_ROUNDS, LOOK_ROUNDS // rows)
        self._held = candidates()[0]
        self._looking_at: RowMode | None = None
        self._rounds = 0
        self._regret = 0.0
        self._compared = 0.0
        self._kept = Tally(HELD_ROUNDS)
        self._look = Tally(self._look_rounds)
        self._speeds: dict[RowMode, Speed] = defaultdict(Speed)
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
        self._seconds += seconds
        self._rounds += 1
        counts = self._rounds > WARM_UP_ROUNDS
        if self._looking_at is not None:
            self._regret += seconds - tokens / self._kept.rate
            if counts:
                self._look.add(tokens, seconds)
            if self._look.is_full or self._is_hopeless():
                self._end_look(self._looking_at)
        elif counts:
            self._kept.add(tokens, seconds)
            if self._rounds % (WARM_UP_ROUNDS + FIRST_ROUNDS) == 0:
                self._consider_a_look()

    def _others(self) -> list[RowMode]:
        return [mode for mode in self._candidates() if mode is not self._held]

    def _untried(self) -> list[RowMode]:
        return [mode for mode in self._others() if mode not in self._looks]

    def _consider_a_look(self) -> None:
        """At what was never looked at; else at what has waited longest for what it costs, if long enough."""
        costly, others = self._costly(), self._others()
        for mode in self._untried():
            if mode not in costly:
                return self._go(mode)
        known = [mode for mode in others if mode in self._looks]
        latest = self._kept.latest(LOOK_ROUNDS)
        if known and latest.rate < FALLEN * self._compared:
            return self._begin_anew(latest, known)
        waited = {mode: self._waited(mode) for mode in others if self._kept.is_full}
        due = max(waited, key=lambda mode: waited[mode], default=None)
        return self._go(due) if due and waited[due] >= 1 / SHARE else None

    def _begin_anew(self, latest: Tally, known: Sequence[RowMode]) -> None:
        """On to the best of those known. Of what was measured only the `latest` of the mode held counts."""
        self._kept = latest
        for speed in self._speeds.values():
            speed.rounds = 0
        self._go(max(known, key=lambda mode: self._speeds[mode].value))

    def _go(self, mode: RowMode | None) -> None:
        """On to a look at `mode`, or back to the mode held."""
        self._looking_at, self._look = mode, Tally(self._look_rounds)
        self._rounds, self._regret = 0, 0.0

    def _waited(self, mode: RowMode) -> float:
        """Since the last look at `mode`, in units of what that cost; the first may cost several rounds."""
        at, cost = self._looks.get(mode, Look(0.0, FIRST_ROUNDS * self._round_seconds))
        found, held = self._speeds[mode], self._speeds[self._held]
        if mode in self._looks:
            is_near = found.value > NEAR * held.value
            cost *= found.rounds / REMEMBERED_ROUNDS if is_near else FAR
        return (self._seconds - at) / max(cost, 1e-9)

    @property
    def _round_seconds(self) -> float:
        return self._kept.seconds / self._kept.rounds

    def _is_hopeless(self) -> bool:
        part = self._hopeless.get(self._look.rounds)
        return part is not None and self._look.rate < part * self._kept.rate

    def _end_look(self, mode: RowMode) -> None:
        """Hold the mode if it is faster; note what the look cost."""
        held, found = self._speeds[self._held], self._speeds[mode]
        found.note(held.value * self._look.rate / self._kept.rate, self._look.rounds)
        rates = {self._held.value: round(self._kept.rate, 1), mode.value: round(self._look.rate, 1)}
        cost = max(self._regret, self._round_seconds)  # to go and to come back costs a round
        self._looks[mode] = Look(self._seconds, cost)
        if found.value > (1 + ADVANTAGE + UNCERTAINTY / sqrt(found.rounds)) * held.value:
            self._looks[self._held] = Look(self._seconds, cost)
            self._held, self._kept = mode, Tally(HELD_ROUNDS)
            for each in self._look:
                self._kept.add(*each)
        self._compared = self._kept.rate
        log.debug("hybrid measured", tokens_per_second=rates, chosen=self._held.value)
        self._go(None)

"""How many outcomes to prepare: more paths make every draft pass slower, and proposals shorter.

With M paths a pass of the draft takes t(M) seconds, so that a build that lasts as long as a
verification, T seconds, gives proposals of about d(M) = T / t(M) - ½ tokens: its first pass reads the
last token of the proposal in hand, and its last one, half done at the verdict, is finished. The
likely outcomes are few: h(M) is the share of bonuses that were among the M best candidates. The
chooser takes the M that promises most tokens a second, h(M) · (1 - a^(d+1)) / (1 - a) + 1 - h(M) where
a token is accepted with probability a once those before it are, in T + t(M) / 2 seconds, from what it
measured.
"""

from __future__ import annotations

from collections.abc import Iterable

from ssd_runtime.speculation.commands import StepCost

SMOOTHING = 0.2
PRIOR_ACCEPTANCE = 0.8
FIRST_SHARE = 0.6
EXTRA_TOKEN = 0.15
CHOICE_ROUNDS = 8
"""Rounds in which a choice stands: averages move slowly, and all rates together take as long as a commit."""
SHORTEST = 1e-9
"""Seconds that a pass takes at least, so that nothing is divided by zero."""


class Average:
    """An exponential moving average; None before the first value."""

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, value: float) -> None:
        """Take one more value into account."""
        self.value = value if self.value is None else self.value + SMOOTHING * (value - self.value)


class BudgetChooser:
    """Chooses the budget per row, from 1 to `most`, for drafts of up to `length` tokens."""

    def __init__(self, most: int, length: int) -> None:
        self._most = most
        self._length = length
        self._verify = Average()
        self._steps: dict[int, Average] = {}
        self._accepted, self._tried = Average(), Average()
        self._ranks = [0.0] * (most + 1)
        self._chosen: dict[int, int] = {}
        self._rounds = 0

    def note_verification(self, seconds: float) -> None:
        """The target took this long for a round's verification."""
        self._verify.add(seconds)
        self._rounds += 1
        if self._rounds % CHOICE_ROUNDS == 0:
            self._chosen.clear()

    @property
    def verification_seconds(self) -> float:
        """How long a verification takes of late; 0 before the first."""
        return self._verify.value or 0.0

    def note_steps(self, steps: Iterable[StepCost]) -> None:
        """The draft took this long for its passes."""
        for tokens, seconds in steps:
            if tokens not in self._steps:
                self._steps[tokens] = Average()
            self._steps[tokens].add(seconds)

    def note_acceptance(self, proposed: int, accepted: int) -> None:
        """One verdict. The token after the accepted ones was tried too; those behind it were not."""
        if proposed:
            self._accepted.add(accepted)
            self._tried.add(min(accepted + 1, proposed))

    def note_rank(self, rank: int | None) -> None:
        """A bonus was the draft's candidate number `rank` at its place, or none of them."""
        self._ranks[min(self._most if rank is None else rank, self._most)] += 1

    def choose(self, num_rows: int) -> int:
        """Outcomes to prepare for each of `num_rows` rows."""
        if not self._most or self._verify.value is None or not self._steps:
            return min(self._most, 2)
        if num_rows not in self._chosen:
            budgets = range(1, self._most + 1)
            self._chosen[num_rows] = max(budgets, key=lambda budget: self._rate(budget, num_rows))
        return self._chosen[num_rows]

    def _rate(self, budget: int, num_rows: int) -> float:
        """Tokens a second of one row."""
        verify, step = self._verify.value or 0.0, self._step(budget * num_rows)
        depth = max(0.0, min(self._length, verify / step - 0.5))
        rate = self._acceptance()
        expected = depth + 1 if rate >= 1 else (1 - rate ** (depth + 1)) / (1 - rate)
        share = self._share(budget)
        return (share * expected + 1 - share) / (verify + step / 2)

    def _acceptance(self) -> float:
        """The part of the tokens that were tried which were accepted."""
        if self._tried.value is None:
            return PRIOR_ACCEPTANCE
        return (self._accepted.value or 0.0) / self._tried.value

    def _share(self, budget: int) -> float:
        """The part of all bonuses that the best `budget` candidates would have covered."""
        seen = FIRST_SHARE + sum(self._ranks[:budget])
        return seen / (1 + sum(self._ranks))

    def _step(self, tokens: int) -> float:
        """Seconds of a pass over `tokens` tokens: as measured, or from the nearest count that was."""
        nearest = min(self._steps, key=lambda known: (abs(known - tokens), known))
        seconds = max(self._steps[nearest].value or 0.0, SHORTEST)
        return seconds * _relative_cost(tokens) / _relative_cost(nearest)


def _relative_cost(tokens: int) -> float:
    """What a pass costs beside one over a single token, before anything is measured.

    Without it a count that was never tried would look as dear as the nearest one that was, and a budget
    that is too large would never be left.
    """
    return 1 + EXTRA_TOKEN * (tokens - 1)

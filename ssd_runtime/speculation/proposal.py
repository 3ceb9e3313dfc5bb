"""A proposal: the tokens that somebody guesses a row will emit next. A value; nothing is mutated."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_runtime.stats import NO_SOURCE


@dataclass(frozen=True, slots=True)
class Proposal:
    """Guessed tokens for one row, and where they came from.

    source: `cache` for a hit, the proposer's name for a fallback, `none` without tokens.
    looked_up: whether the outcome cache was asked this round.
    candidates: for each position 0…len(token_ids) the draft's likely tokens there, best first; a
    position that the draft has not seen yet has none, and so have proposals of model-free proposers.
    """

    token_ids: tuple[int, ...] = ()
    source: str = NO_SOURCE
    looked_up: bool = False
    candidates: tuple[tuple[int, ...], ...] = ()

    def cut(self, length: int) -> Proposal:
        """The same proposal, at most `length` tokens long."""
        if len(self.token_ids) <= length:
            return self
        source = self.source if length else NO_SOURCE
        return Proposal(self.token_ids[:length], source, self.looked_up, self.candidates[: length + 1])

    def bonus_rank(self, accepted: int, bonus: int) -> int | None:
        """The place of `bonus` among the candidates after `accepted` tokens, 0 best; None if not there."""
        if accepted >= len(self.candidates) or bonus not in self.candidates[accepted]:
            return None
        return self.candidates[accepted].index(bonus)


NOTHING = Proposal()

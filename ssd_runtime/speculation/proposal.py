"""A proposal: the tokens that somebody guesses a row will emit next. A value; nothing is mutated."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ssd_runtime.stats import NO_SOURCE

if TYPE_CHECKING:
    from ssd_runtime.sampling.odds import Odds


class Guess(NamedTuple):
    """What a draft thinks of one position: its likely tokens there, best first, and how sure it is.

    margin: the difference of the two best perturbed scores (of logits at temperature 0).
    """

    candidates: tuple[int, ...]
    margin: float


class Proposal(NamedTuple):
    """Guessed tokens for one row, and where they came from.

    source: `cache` for a hit, the proposer's name for a fallback, `none` without tokens.
    looked_up: whether the outcome cache was asked this round.
    guesses: of positions 0, 1, …; at most one more than tokens. The draft has not seen the later
    positions yet, and a proposer without a model has none at all.
    odds: what each token was drawn from, where the verification needs to know; empty where it was not drawn.
    """

    token_ids: tuple[int, ...] = ()
    source: str = NO_SOURCE
    looked_up: bool = False
    guesses: tuple[Guess, ...] = ()
    odds: tuple[Odds, ...] = ()

    def served(self, source: str, length: int, *, looked_up: bool) -> Proposal:
        """The same proposal as row `source` gets it: at most `length` tokens long."""
        token_ids = self.token_ids[: max(length, 0)]
        return Proposal(
            token_ids,
            source if token_ids else NO_SOURCE,
            looked_up,
            self.guesses[: len(token_ids) + 1],
            self.odds[: len(token_ids)],
        )

    def bonus_rank(self, accepted: int, bonus: int | None) -> int | None:
        """The place of `bonus` among the candidates after `accepted` tokens, 0 best; None if not there."""
        candidates = self.guesses[accepted].candidates if accepted < len(self.guesses) else ()
        return candidates.index(bonus) if bonus in candidates else None


NOTHING = Proposal()

"""The sampler `rejection`: the classical ratio rule, each decision with a random number of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ssd_runtime.api import Draw, draft_by_chance, draw_by_chance, verify_by_chance

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.api import DraftStep, Odds, Verdict

FAN_OUT = 3


class RejectionSampler:
    """Emits samples of the target's distribution; which ones depends on what was proposed, and when.

    Options: `c`, above 0 and up to 1, and `fan_out`: each draft token is drawn with the probabilities of
    the draft's `fan_out` likeliest tokens multiplied by `c`. The lower, the likelier is the bonus one of
    them, for which a proposal was prepared, and the fewer drafts are accepted. 1, the default, is off.
    """

    name = "rejection"

    def __init__(self, **options: Any) -> None:
        """Raises ValueError for an option that is unknown or out of range."""
        c, fan_out = options.pop("c", 1.0), options.pop("fan_out", FAN_OUT)
        if isinstance(c, bool) or not isinstance(c, int | float) or not 0 < c <= 1:
            raise ValueError(f"option 'c': got {c!r}, expected a number above 0, up to 1")
        if isinstance(fan_out, bool) or not isinstance(fan_out, int) or fan_out < 1:
            raise ValueError(f"option 'fan_out': got {fan_out!r}, expected a whole number, at least 1")
        if options:
            raise ValueError(f"unknown option {min(options)!r}; allowed: c, fan_out")
        self._factor = float(c)
        self._fan_out = fan_out

    def draw(self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
        """See `Sampler`."""
        return draw_by_chance(logits, draws, positions)

    def draft(
        self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int], count: int
    ) -> list[DraftStep]:
        """See `Sampler`; each step says what its token was drawn from."""
        rows = zip(logits, draws, positions, strict=True)
        return [draft_by_chance(*row, count, lower=self._fan_out, factor=self._factor) for row in rows]

    def verify(
        self,
        drafts: Sequence[int],
        drawn_from: Sequence[Odds],
        logits: Iterable[Tensor],
        draw: Draw,
        first: int,
    ) -> Verdict:
        """See `Verifier`."""
        return verify_by_chance(drafts, drawn_from, logits, draw, first)

"""The sampler `coupled`: noise shared by draft and target, accept where the tokens are equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssd_runtime.api import DraftStep, Draw, draft_steps, draw_tokens

if TYPE_CHECKING:
    from torch import Tensor


class CoupledSampler:
    """Draws are a function of (logits, request seed, position): the same for draft and target."""

    name = "coupled"
    is_native = True
    """The native library draws the same, without bringing logits to Python."""

    def draw(self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> list[int]:
        """One token per row of `logits` `[N, V]`; negative where the row's numbers are unusable."""
        return draw_tokens(logits, draws, positions)

    def draft(
        self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int], count: int
    ) -> list[DraftStep]:
        """Per row of `logits` `[N, V]` the drawn token and the `count` likeliest target tokens."""
        return draft_steps(logits, draws, positions, count)

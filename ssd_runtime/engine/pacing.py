"""How much of a prompt a round may read beside rows that decode, so that these hardly notice."""

from __future__ import annotations

FIRST_TOKENS = 16
"""Before anything was measured: about what a pass takes along while it waits for its weights."""
MOST_ROUNDS = 2.0
"""A round that reads prompts may take so many rounds' time."""
LARGEST_STEP = 2.0
MEMORY = 0.9


class Pacer:
    """Finds the tokens by what rounds take: too long, fewer; not long enough, more.

    It follows any machine and model, and knows nothing of either.
    """

    def __init__(self) -> None:
        self._allowance = float(FIRST_TOKENS)
        self._decoding_seconds: float | None = None

    @property
    def allowance(self) -> int:
        """Tokens of prompts that the next round may read beside rows that decode."""
        return max(1, int(self._allowance))

    def note(self, decoding: int, reading: int, seconds: float) -> None:
        """A round took `seconds`; it fed so many tokens of rows that decode, and of prompts."""
        if decoding and not reading:
            known = seconds if self._decoding_seconds is None else self._decoding_seconds
            self._decoding_seconds = MEMORY * known + (1 - MEMORY) * seconds
        elif decoding and self._decoding_seconds is not None and seconds > 0:
            limit = MOST_ROUNDS * self._decoding_seconds
            if reading >= self.allowance or seconds > limit:
                step = min(max(limit / seconds, 1 / LARGEST_STEP), LARGEST_STEP)
                self._allowance = max(1.0, (decoding + reading) * step - decoding)

"""Every row's mode: its request's own, or the engine's of the moment."""

from __future__ import annotations

from collections import Counter

from ssd_runtime.sequence import Sequence
from ssd_runtime.speculation.mode_control import ModeController
from ssd_runtime.types import Mode, RowMode


class Modes:
    """Asks the controller for those who do not say. `rounds`: rounds of rows so far, by mode."""

    def __init__(self, controller: ModeController, *, has_draft: bool) -> None:
        self.rounds: Counter[str] = Counter(dict.fromkeys(RowMode, 0))
        self._controller = controller
        self._has_draft = has_draft

    @property
    def current(self) -> RowMode:
        """The mode of rows whose request does not say."""
        return self._controller.mode if self._has_draft else RowMode.AUTOREGRESSIVE

    @property
    def looks_up(self) -> bool:
        """Whether rows in the low-latency mode are to get proposals."""
        return self._controller.looks_up

    def of(self, sequence: Sequence) -> RowMode:
        """The mode of one row in the next round."""
        wanted = sequence.request.speculation
        if not wanted.enabled or not self._has_draft:
            return RowMode.AUTOREGRESSIVE
        if wanted.mode is None or wanted.mode is Mode.HYBRID:
            return self._controller.mode
        return RowMode(wanted.mode)

    def note_load(self, num_requests: int) -> None:
        """A round begins; so many requests run or wait."""
        self._controller.note_load(num_requests)

    def note_round(self, tokens: int, seconds: float) -> None:
        """A decoding round emitted so many tokens in so many seconds."""
        self._controller.note_round(tokens, seconds)

"""When an answer ends, and which of its text may be shown: token by token, in emission order.

Pure of engine state: ids and text in, ids and text out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ssd_runtime.types import FinishReason


class TextStream(Protocol):
    """Turns token ids into text without ever emitting part of a character."""

    def push(self, token_ids: Sequence[int]) -> str: ...
    def flush(self) -> str: ...


class StopStrings:
    """Holds text back while it may still become one of `stops`; cuts at the first one completed."""

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        """shown: the text ends with the stop string instead of before it."""
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may be shown now, and whether a stop string was completed.

        Among several, the one completed first wins; of those completed by the same character, the
        longest.
        """
        self._held += text
        ends = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if ends:
            end, start = min(ends)
            shown, self._held = self._held[: end if self._shown else start], ""
            return shown, True
        keep = self._longest_open_prefix()
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(self._held) - keep :]
        return shown, False

    def flush(self) -> str:
        """What was held back, when the answer ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _longest_open_prefix(self) -> int:
        longest = min(len(self._held), max((len(stop) for stop in self._stops), default=1) - 1)
        for size in range(longest, 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0


class AnswerEnd:
    """The stop rules of one request, fed with its tokens in order."""

    def __init__(
        self,
        text: TextStream,
        *,
        end_ids: Iterable[int],
        stop_strings: Sequence[str],
        max_tokens: int,
        min_tokens: int = 0,
        echo: str = "",
        include_stop: bool = False,
    ) -> None:
        """`end_ids`: EOS and stop token ids, which end the answer and show no text.

        min_tokens: nothing in so many tokens ends the answer; stop strings are looked for behind them.
        echo: text that stands before the answer, and in which nothing is looked for. include_stop: the
        text of what ends the answer is shown too.
        """
        self._text = text
        self._end_ids = frozenset(end_ids)
        self._stops = StopStrings(stop_strings, shown=include_stop)
        self._looks = bool(stop_strings)
        self._include_stop = include_stop
        self._left = max_tokens
        self._free = min_tokens
        self._shown = [echo]
        self._unread: list[int] = []
        self._last: list[int] | None = None

    def take(self, token_ids: Iterable[int]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Take the tokens of one round: those before the end, and why it ended if it did.

        Text is worked out here only where stop strings are looked for; the rest is left to `show`.
        """
        kept: list[int] = []
        reason = FinishReason.LENGTH if self._left == 0 else None
        for token in token_ids:
            if reason is not None:
                break
            kept.append(token)
            self._left -= 1
            self._free -= 1
            if self._looks or self._left == 0 or token in self._end_ids:
                reason = self._ended_by(token)
            else:
                self._unread.append(token)
        return tuple(kept), reason

    def show(self) -> str:
        """The text of what was taken since it was last asked for, as far as it may be shown."""
        if self._unread:
            self._read()
        if self._last is not None:
            self._shown.append(self._stops.push(self._text.push(self._last))[0] + self._rest())
            self._last = None
        text = "".join(self._shown)
        self._shown.clear()
        return text

    def _ended_by(self, token: int) -> FinishReason | None:
        """Why the answer ends with a token that may end it, if it does."""
        if token in self._end_ids and self._free < 0:
            self._last = [token] if self._include_stop else []
            return FinishReason.STOP
        self._unread.append(token)
        if self._looks and self._free < 0 and self._stopped():
            return FinishReason.STOP
        if self._left == 0:
            self._last = []
            return FinishReason.LENGTH
        return None

    def _stopped(self) -> bool:
        """Whether the token taken last completed a stop string."""
        token = self._unread.pop()
        self._read()
        text, stopped = self._stops.push(self._text.push([token]))
        self._shown.append(text)
        return stopped

    def _read(self) -> None:
        """Text in which nothing is looked for."""
        self._shown.append(self._text.push(self._unread))
        self._unread.clear()

    def _rest(self) -> str:
        text, _ = self._stops.push(self._text.flush())
        return text + self._stops.flush()

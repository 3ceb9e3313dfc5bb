"""What `ssd-run chat` knows of an answer's rounds: the figures of `/stats`, and which text was drafted."""

from __future__ import annotations

import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ssd_runtime.cli.summary import counted
from ssd_runtime.faces import answer_of
from ssd_runtime.hooks.kinds import Observer
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.types import Answer, Output

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer

NO_FIGURES = "no figures: nothing has been answered to its end"
Tint = Callable[[str], str]


class Rounds:
    """Hears of the rounds of one request at a time, as an observer of the engine that it is a plugin of.

    The engine's thread writes, and tells a round before it sends the round's piece.
    """

    def __init__(self) -> None:
        self._request_id = ""
        self._untold: deque[RoundRecord] = deque()
        self._modes: Counter[str] = Counter()

    @hookimpl
    def ssd_register_observers(self, registry: Registry[Observer]) -> None:
        """Hear of every round."""
        registry.register("chat", lambda: self)

    def observe(self, record: RoundRecord) -> None:
        """Keep one verdict of the request that is being followed."""
        if record.request_id == self._request_id:
            self._modes[record.mode] += 1
            self._untold.append(record)

    def follow(self, request_id: str) -> None:
        """Forget all, and keep the rounds of this request from now on."""
        self._request_id = request_id
        self._untold = deque()
        self._modes = Counter()

    def accepted(self, piece: Output) -> int:
        """How many of the piece's tokens, the first ones, were drafted."""
        return self._untold.popleft().accepted if piece.token_ids and self._untold else 0

    @property
    def modes(self) -> dict[str, int]:
        """Rounds by the way they were run, most first."""
        return dict(self._modes.most_common())


def figures(pieces: Sequence[Output], modes: dict[str, int]) -> str:
    """The lines of `/stats` for the pieces of one answer."""
    if not pieces or pieces[-1].finish_reason is None:
        return NO_FIGURES
    return "\n".join(f"{name:12}{text}" for name, text in _rows(answer_of(pieces), modes))


def _rows(answer: Answer, modes: dict[str, int]) -> Iterator[tuple[str, str]]:
    tokens, seconds, stats = len(answer.token_ids), answer.timing.total_seconds, answer.speculation
    totals = RoundTotals(stats.rounds, stats.hits, stats.misses, stats.draft_tokens, stats.accepted_tokens)
    rate = f", {tokens / seconds:.1f} tokens/s" if seconds > 0 else ""
    yield "prompt", f"{counted(len(answer.prompt_token_ids), 'token')}, {answer.cached_tokens} of them cached"
    yield "answer", f"{counted(tokens, 'token')} in {seconds:.2f} s{rate}, first token after {_first(answer)}"
    if totals.acceptance_rate is not None and totals.mean_acceptance_length is not None:
        drafts = f"{totals.accepted_tokens} of {totals.draft_tokens} tokens accepted"
        length = f"mean acceptance length {totals.mean_acceptance_length:.2f}"
        yield "drafts", f"{drafts} ({totals.acceptance_rate:.2f}), {length}"
    if totals.hit_rate is not None:
        lookups = totals.hits + totals.misses
        yield "hits", f"{totals.hits} of {lookups} outcomes were prepared ({totals.hit_rate:.2f})"
    told = ", ".join(f"{count} {mode or 'unknown'}" for mode, count in modes.items())
    yield "rounds", f"{totals.rounds}: {told}" if told else str(totals.rounds)


def _first(answer: Answer) -> str:
    return f"{answer.timing.first_token_seconds:.3f} s"


class DraftedText:
    """Tints in each piece's text what the draft had written."""

    def __init__(self, tokenizer: Tokenizer, tint: Tint) -> None:
        from ssd_runtime.models.text_decoder import text_decoder  # loads torch, which `--help` does without

        self._decoder = text_decoder(tokenizer)
        self._tint = tint

    def shown(self, piece: Output, accepted: int) -> str:
        """The text of `piece`, the first `accepted` tokens of which were drafted."""
        drafted = self._decoder.push(piece.token_ids[:accepted])
        self._decoder.push(piece.token_ids[accepted:])
        if not drafted or not piece.text.startswith(drafted):
            return piece.text
        return self._tint(drafted) + piece.text[len(drafted) :]


def terminal_tint(stdout: int) -> Tint | None:
    """What colours text on stdout; None without a terminal, without colours, and where NO_COLOR is set."""
    from rich.color import ColorSystem
    from rich.console import Console
    from rich.style import Style

    if not os.isatty(stdout) or os.environ.get("NO_COLOR") or Console(file=sys.stdout).color_system is None:
        return None
    return partial(Style(color="cyan").render, color_system=ColorSystem.STANDARD)

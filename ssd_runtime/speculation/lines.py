"""Lines: paths of the draft that grow by one pass at a time. What a row does with them is in `rows.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ssd_runtime.messages import Draw
from ssd_runtime.sampling.warp import BANNED
from ssd_runtime.speculation.commands import DraftRow
from ssd_runtime.speculation.model_draft import Feed
from ssd_runtime.speculation.proposal import Guess, Proposal
from ssd_runtime.speculation.trunk import Path

if TYPE_CHECKING:
    from ssd_runtime.sampling.odds import Odds

READ_CHUNK = 64
"""Most tokens a path reads in one pass, so that a stop word is never far."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What one position's logits gave: the draft's own token there, its guess, and the token's odds."""

    token: int
    guess: Guess
    odds: Odds | None = None


def guess_of(candidates: tuple[int, ...], scores: Sequence[float]) -> Guess:
    """The guess that ranked candidates come to; what is banned is none of them."""
    if scores and scores[-1] < BANNED / 2:
        candidates = tuple(
            token for token, score in zip(candidates, scores, strict=True) if score > BANNED / 2
        )
    return Guess(candidates, scores[0] - scores[1] if len(scores) > 1 else 0.0)


class Line(Protocol):
    """A path in progress. settled: the row's committed tokens.

    guessed: what stands between them and each of the `count` positions whose logits the last pass gave.
    """

    path: Path
    draw: Draw
    settled: Sequence[int]

    @property
    def is_done(self) -> bool: ...
    def guessed(self, count: int) -> list[Sequence[int]]: ...
    def feed(self) -> Feed: ...
    def take(self, picks: Sequence[Pick]) -> None: ...


class CatchUp:
    """Reads what the trunk has not seen yet of the settled tokens and of `sent`, in chunks.

    Guesses the positions behind the settled tokens and behind each of `sent`.
    """

    def __init__(
        self,
        path: Path,
        missing: Sequence[int],
        draw: Draw,
        settled: Sequence[int],
        sent: Sequence[int] = (),
    ) -> None:
        self.path = path
        self.draw = draw
        self.settled = settled
        self.guesses: dict[int, Pick] = {}
        self._missing = list(missing)
        self._sent = sent
        self._first = len(settled)

    @property
    def is_done(self) -> bool:
        """Whether everything was read."""
        return not self._missing

    def feed(self) -> Feed:
        """The next chunk; logits for those of its tokens after which a guess is wanted."""
        chunk = self._missing[:READ_CHUNK]
        after = self.path.state.length + len(chunk)
        return Feed(self.path.state, chunk, max(0, min(len(chunk), after - self._first + 1)))

    def guessed(self, count: int) -> list[Sequence[int]]:
        """See `Line`."""
        end = self.path.state.length - self._first
        return [self._sent[:after] for after in range(end - count + 1, end + 1)]

    @property
    def missing(self) -> Sequence[int]:
        """What is not read yet."""
        return self._missing

    def take(self, picks: Sequence[Pick]) -> None:
        """The chunk was read; `picks` are of its last positions."""
        self.note(READ_CHUNK, picks)

    def note(self, num_tokens: int, picks: Sequence[Pick]) -> None:
        """Up to `num_tokens` more of what was missing were read; `picks` are of the last positions."""
        length = self.path.state.length
        self.path.read.extend(self._missing[:num_tokens])
        del self._missing[:num_tokens]
        for position, pick in zip(range(length - len(picks) + 1, length + 1), picks, strict=True):
            self.guesses[position] = pick


@dataclass(slots=True, eq=False)
class Drafting:
    """Draws token after token: reads `next_token`, takes the draft's own token after it, and so on.

    ahead: what stands between the settled tokens and `next_token`.
    """

    path: Path
    draw: Draw
    next_token: int
    length: int
    end_ids: frozenset[int]
    settled: Sequence[int] = ()
    ahead: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    guesses: list[Guess] = field(default_factory=list)
    odds: list[Odds] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether it is long enough, or has drafted the end of the answer."""
        return len(self.token_ids) >= self.length or self.next_token in self.end_ids

    def feed(self) -> Feed:
        """The last token drawn."""
        return Feed(self.path.state, (self.next_token,), 1)

    def guessed(self, count: int) -> list[Sequence[int]]:
        """See `Line`; `count` is 1."""
        return [(*self.ahead, self.next_token)]

    def take(self, picks: Sequence[Pick]) -> None:
        """One more token was drawn."""
        self.path.read.append(self.next_token)
        self.ahead.append(self.next_token)
        self.add(picks[0])

    def note(self, token_ids: Sequence[int], guesses: Sequence[Guess]) -> None:
        """As many `take`s, each with one of `token_ids` and its guess."""
        self.path.read += [self.next_token, *token_ids[:-1]]
        self.ahead += [self.next_token, *token_ids[:-1]]
        of_use = [token for token in token_ids if token >= 0]
        self.token_ids += of_use
        self.guesses += guesses[: len(of_use)]
        if len(of_use) < len(token_ids):
            self.length = len(self.token_ids)
        self.next_token = of_use[-1] if of_use else self.next_token

    def add(self, pick: Pick) -> None:
        """Continue with `pick`; a negative token (numbers of no use) ends the line."""
        if pick.token < 0:
            self.length = len(self.token_ids)
            return
        self.next_token = pick.token
        self.token_ids.append(pick.token)
        self.guesses.append(pick.guess)
        if pick.odds is not None:
            self.odds.append(pick.odds)

    def proposal(self) -> Proposal:
        """What was drawn so far."""
        return Proposal(tuple(self.token_ids), guesses=tuple(self.guesses), odds=tuple(self.odds))


def line_draw(row: DraftRow, first: int) -> Draw:
    """How the tokens of the line are drawn that continues `row` from position `first` on."""
    return replace(row.draw, line=(len(row.token_ids), first))

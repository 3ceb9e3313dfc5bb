"""Lines: paths of the draft that grow by one pass at a time. Used by `drafting.py`, step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ssd_runtime.messages import Draw
from ssd_runtime.speculation.commands import Branch, DraftRow
from ssd_runtime.speculation.model_draft import Feed
from ssd_runtime.speculation.proposal import Guess, Proposal
from ssd_runtime.speculation.trunk import Path, Trunk

if TYPE_CHECKING:
    from ssd_runtime.sampling.odds import Odds

Allot = Callable[[Sequence[float], int], Sequence[int]]
"""How many candidates to prepare at each position, given the margins there and the budget."""

READ_CHUNK = 64
"""Most tokens a path reads in one pass, so that a stop word is never far."""


@dataclass(frozen=True, slots=True)
class Pick:
    """What one position's logits gave: the draft's own token there, its guess, and the token's odds."""

    token: int
    guess: Guess
    odds: Odds | None = None


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

    def take(self, picks: Sequence[Pick]) -> None:
        """The chunk was read; `picks` are of its last positions."""
        length = self.path.state.length
        self.path.read.extend(self._missing[:READ_CHUNK])
        del self._missing[:READ_CHUNK]
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


class RowBuild:
    """One row's part in a build: its catch-up, then a branch for each outcome that is prepared."""

    def __init__(self, row: DraftRow, trunk: Trunk, allot: Allot) -> None:
        self.row = row
        self.trunk = trunk
        self._allot = allot
        sent = row.proposal.token_ids
        missing = trunk.align([*row.token_ids, *sent])
        self._catch_up = CatchUp(trunk.path, missing, row.draw, row.token_ids, sent)
        self._guesses: list[Guess | None] = list(row.proposal.guesses[: len(sent)])
        self._guesses += [None] * (len(sent) + 1 - len(self._guesses))
        self._counts: Sequence[int] | None = None
        self._branches: dict[tuple[int, int], Drafting] = {}
        if None not in self._guesses[:-1] and len(missing) == 1:
            self.open_branches()

    @property
    def is_ready(self) -> bool:
        """Whether the draft has read all there is."""
        return self._catch_up.is_done

    def lines(self) -> list[Line]:
        """The paths that the next pass extends."""
        branches: list[Line] = [branch for branch in self._branches.values() if not branch.is_done]
        return branches if self._catch_up.is_done else [self._catch_up, *branches]

    def advance(self) -> None:
        """After a pass: once everything is read, open the branches that waited for it."""
        if self._catch_up.is_done and self._guesses[-1] is None:
            for position, pick in self._catch_up.guesses.items():
                self._guesses[position - len(self.row.token_ids)] = pick.guess
            self.open_branches()

    def open_branches(self) -> None:
        """Fork a branch for every outcome that got a share of the budget and can start now."""
        if self._counts is None:
            margins = [guess.margin if guess else 0.0 for guess in self._guesses[:-1]]
            self._counts = self._allot(margins, self.row.budget)
        for accepted, guess in enumerate(self._guesses):
            if guess is not None:
                for bonus in self._bonuses(accepted, guess):
                    self._open(accepted, bonus)

    def result(self) -> tuple[Branch, ...] | None:
        """The outcomes that got at least one token; None when the draft is still reading."""
        if not self.is_ready:
            return None
        return tuple(
            Branch(accepted, bonus, branch.proposal())
            for (accepted, bonus), branch in self._branches.items()
            if branch.token_ids
        )

    def _bonuses(self, accepted: int, guess: Guess) -> list[int]:
        """The likeliest bonuses after `accepted` tokens. The sent token is none while it can be rejected."""
        sent = self.row.proposal.token_ids
        excluded = set(self.row.end_ids)
        if accepted < len(sent):
            excluded.add(sent[accepted])
        likely = [token for token in guess.candidates if token not in excluded]
        return likely[: self._counts[accepted] if self._counts else 0]

    def _open(self, accepted: int, bonus: int) -> None:
        row, at = self.row, len(self.row.token_ids) + accepted
        length = min(row.length, row.max_len - at - 2)
        if (accepted, bonus) in self._branches or length < 1:
            return
        branch = self.trunk.fork(at)
        ahead = list(row.proposal.token_ids[:accepted])
        self._branches[accepted, bonus] = Drafting(
            branch, line_draw(row, at + 1), bonus, length, row.end_ids, row.token_ids, ahead
        )

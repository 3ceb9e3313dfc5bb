"""One row's part in what the draft's lane does: its catch-up, and the lines that open when that is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ssd_runtime.speculation.commands import Branch, DraftRow
from ssd_runtime.speculation.lines import CatchUp, Drafting, Line, line_draw
from ssd_runtime.speculation.proposal import NOTHING, Guess, Proposal
from ssd_runtime.speculation.trunk import Path, Trunk

Allot = Callable[[Sequence[float], int], Sequence[int]]
"""How many candidates to prepare at each position, given the margins there and the budget."""

Fork = Callable[[int], Path]
"""A branch of a row's trunk from a position on."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What opens when a catch-up is read: up to `count` lines of up to `length` tokens each.

    continues: one line, which goes on along the trunk itself.
    """

    count: int = 0
    length: int = 0
    continues: bool = False


class Part(Protocol):
    """A row's part in a draft or in a build."""

    row: DraftRow
    trunk: Trunk
    catch_up: CatchUp

    def lines(self) -> list[Line]: ...
    def opening(self) -> Opening | None: ...
    def advance(self, fork: Fork | None = None) -> None: ...


class RowDraft:
    """One row's part in a draft: what follows its committed tokens."""

    def __init__(self, row: DraftRow, trunk: Trunk) -> None:
        self.row = row
        self.trunk = trunk
        missing = trunk.align(list(row.token_ids), len(row.token_ids))
        self._draw = line_draw(row, len(row.token_ids))
        self.catch_up = CatchUp(trunk.path, missing, self._draw, row.token_ids)
        self._line: Drafting | None = None

    def lines(self) -> list[Line]:
        """The path that the next pass extends."""
        line = self._line or self.catch_up
        return [] if line.is_done else [line]

    def opening(self) -> Opening:
        """What will open when everything is read."""
        if self._line is not None or self._length < 1:
            return Opening()
        return Opening(1, self._length, continues=True)

    def advance(self, fork: Fork | None = None) -> None:
        """After a pass: once everything is read, go on with what was drawn there."""
        if self.catch_up.is_done and self._line is None:
            row, first = self.row, self.catch_up.guesses[len(self.row.token_ids)]
            self._line = Drafting(
                self.trunk.path, self._draw, first.token, self._length, row.end_ids, row.token_ids
            )
            if self._length > 0:
                self._line.add(first)

    def result(self) -> Proposal:
        """What was drawn so far."""
        return NOTHING if self._line is None else self._line.proposal()

    @property
    def _length(self) -> int:
        return min(self.row.length, self.row.max_len - len(self.row.token_ids) - 1)


class RowBuild:
    """One row's part in a build: its catch-up, then a branch for each outcome that is prepared."""

    def __init__(self, row: DraftRow, trunk: Trunk, allot: Allot) -> None:
        self.row = row
        self.trunk = trunk
        self._allot = allot
        sent = row.proposal.token_ids
        missing = trunk.align([*row.token_ids, *sent], len(row.token_ids))
        self.catch_up = CatchUp(trunk.path, missing, row.draw, row.token_ids, sent)
        self._guesses: list[Guess | None] = list(row.proposal.guesses[: len(sent)])
        self._guesses += [None] * (len(sent) + 1 - len(self._guesses))
        self._counts: Sequence[int] | None = None
        self._branches: dict[tuple[int, int], Drafting] = {}
        if None not in self._guesses[:-1] and len(missing) == 1:
            self._open_branches(trunk.fork)

    @property
    def is_ready(self) -> bool:
        """Whether the draft has read all there is."""
        return self.catch_up.is_done

    def lines(self) -> list[Line]:
        """The paths that the next pass extends."""
        branches: list[Line] = [branch for branch in self._branches.values() if not branch.is_done]
        return branches if self.catch_up.is_done else [self.catch_up, *branches]

    def opening(self) -> Opening | None:
        """What will open when everything is read; None where that depends on margins which are not known."""
        if self.is_ready:
            return Opening()
        if self._counts is None and len(self._guesses) > 1:
            return None
        accepted = len(self._guesses) - 1
        length = self._length(accepted)
        return Opening(self._share()[accepted] if length > 0 else 0, length)

    def advance(self, fork: Fork | None = None) -> None:
        """After a pass: once everything is read, open the branches that waited for it.

        fork: instead of the trunk's own.
        """
        if self.catch_up.is_done and self._guesses[-1] is None:
            for position, pick in self.catch_up.guesses.items():
                self._guesses[position - len(self.row.token_ids)] = pick.guess
            self._open_branches(fork or self.trunk.fork)

    def result(self) -> tuple[Branch, ...] | None:
        """The outcomes that got at least one token; None when the draft is still reading."""
        if not self.is_ready:
            return None
        return tuple(
            Branch(accepted, bonus, branch.proposal())
            for (accepted, bonus), branch in self._branches.items()
            if branch.token_ids
        )

    def _open_branches(self, fork: Fork) -> None:
        """Fork a branch for every outcome that got a share of the budget and can start now."""
        counts = self._share()
        for accepted, guess in enumerate(self._guesses):
            if guess is not None and self._length(accepted) > 0:
                for bonus in self._bonuses(accepted, guess)[: counts[accepted]]:
                    if (accepted, bonus) not in self._branches:
                        self._branches[accepted, bonus] = self._branch(accepted, bonus, fork)

    def _share(self) -> Sequence[int]:
        """How many bonuses to prepare after 0, 1, … accepted tokens, by the margins known the first time."""
        if self._counts is None:
            margins = [guess.margin if guess else 0.0 for guess in self._guesses[:-1]]
            self._counts = self._allot(margins, self.row.budget)
        return self._counts

    def _bonuses(self, accepted: int, guess: Guess) -> list[int]:
        """The likeliest bonuses after `accepted` tokens. The sent token is none while it can be rejected."""
        sent = self.row.proposal.token_ids
        excluded = set(self.row.end_ids)
        if accepted < len(sent):
            excluded.add(sent[accepted])
        return [token for token in guess.candidates if token not in excluded]

    def _length(self, accepted: int) -> int:
        """Most tokens to draft behind the bonus after `accepted` tokens."""
        return min(self.row.length, self.row.max_len - len(self.row.token_ids) - accepted - 2)

    def _branch(self, accepted: int, bonus: int, fork: Fork) -> Drafting:
        row, at = self.row, len(self.row.token_ids) + accepted
        ahead = list(row.proposal.token_ids[:accepted])
        draw, length = line_draw(row, at + 1), self._length(accepted)
        return Drafting(fork(at), draw, bonus, length, row.end_ids, row.token_ids, ahead)

"""Drafts and builds of a decoder on the native library: one call for all passes that can be foreseen.

What a step-by-step loop would do is known before the first pass, but for the tokens: the call gets room
for every line that may open, and what it did not need is given back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssd_runtime.messages import StopWord
from ssd_runtime.models.native_build import UNKNOWN, Build, BuildLine, BuildRow, Draws
from ssd_runtime.speculation.commands import StepCost
from ssd_runtime.speculation.lines import READ_CHUNK, Drafting, Pick, guess_of
from ssd_runtime.speculation.model_draft import DecoderDraft, DraftState
from ssd_runtime.speculation.proposal import Guess
from ssd_runtime.speculation.rows import Opening, Part

if TYPE_CHECKING:
    from ssd_runtime.memory.blocks import BlockManager


NO_GUESS = Guess((), 0.0)


class NativeBuilder:
    """Lets the lines of rows grow to their ends in one call; `count` candidates are ranked a position."""

    def __init__(self, draft: DecoderDraft, count: int) -> None:
        self._draft = draft
        self._count = count

    def takes(self, parts: Sequence[Part]) -> bool:
        """Whether `grow` can serve: plain draws, all openings known, and room for all that may open."""
        if not all(part.row.draw.is_plain and part.opening() is not None for part in parts):
            return False
        return sum(self._missing_blocks(part) for part in parts) <= self._blocks.num_free

    def grow(self, parts: Sequence[Part], stop: StopWord) -> list[StepCost]:
        """Read and draw until every line is done or `stop` says so; what each step cost."""
        rows = [self._row(part) for part in parts]
        build = Build(rows, self._draft.take_copies(), READ_CHUNK, self._count, stop)
        try:
            steps = self._draft.decoder.build(build, self._draft.kv, self._draft.vocab_size)
            for part, row in zip(parts, rows, strict=True):
                self._note(part, row)
        finally:
            for part, row in zip(parts, rows, strict=True):
                self._give_back(part, row)
        return [StepCost(tokens, seconds) for tokens, seconds in steps]

    @property
    def _blocks(self) -> BlockManager:
        return self._draft.blocks

    def _missing_blocks(self, part: Part) -> int:
        """Blocks that the row may need beyond those it has."""
        blocks, opening = self._blocks, _opening(part)
        missing = sum(max(0, blocks.blocks_for(size) - len(table)) for table, size in _rooms(part))
        if opening.continues:
            return missing
        at = _end(part)
        return missing + opening.count * (blocks.blocks_for(at + opening.length) - at // blocks.block_size)

    def _row(self, part: Part) -> BuildRow:
        """Room for everything, and what the call is to do in it."""
        for table, size in _rooms(part):
            self._blocks.grow(table, size)
        state, opening = part.trunk.path.state, _opening(part)
        return BuildRow(
            part.row.draw,
            part.row.end_ids,
            state.table,
            state.length,
            part.catch_up.missing,
            [_line(line) for line in _growing(part)],
            [self._waiting(part, opening) for _ in range(opening.count)],
            opening.continues,
        )

    def _waiting(self, part: Part, opening: Opening) -> BuildLine:
        table, at = part.trunk.path.state.table, _end(part)
        if opening.continues:
            return BuildLine(table, at, UNKNOWN, opening.length)
        forked, copy = self._blocks.fork(table, at)
        self._blocks.grow(forked, at + opening.length)
        return BuildLine(forked, at, UNKNOWN, opening.length, copy)

    def _note(self, part: Part, row: BuildRow) -> None:
        """What the call did, as if it had been done step by step."""
        part.trunk.path.state.length += row.read
        part.catch_up.note(row.read, [*map(Pick, row.draws.token_ids, _guesses(row.draws))])
        opened, row.waiting = row.waiting[: row.opened], row.waiting[row.opened :]
        row.lines += opened
        if opened or (row.continues and part.catch_up.is_done):
            tables = iter([line.table for line in opened])
            part.advance(lambda at: part.trunk.keep(DraftState(at, next(tables)), at))
        # a line that has ended as it opened has read nothing
        for line, grown in zip(_growing(part), row.lines, strict=False):
            line.path.state.length = grown.length
            if grown.draws.token_ids:
                line.note(grown.draws.token_ids, _guesses(grown.draws))

    def _give_back(self, part: Part, row: BuildRow) -> None:
        for line in row.lines:
            self._blocks.trim(line.table, line.length)
        if not row.continues:
            for line in row.waiting:
                self._blocks.drop(line.table)
        self._blocks.trim(part.trunk.path.state.table, part.trunk.path.state.length)


def _guesses(draws: Draws) -> list[Guess]:
    return [
        guess_of(candidates, scores) if token >= 0 else NO_GUESS
        for token, candidates, scores in zip(draws.token_ids, draws.candidates, draws.scores, strict=True)
    ]


def _line(line: Drafting) -> BuildLine:
    return BuildLine(line.path.state.table, line.path.state.length, line.next_token, _left(line))


def _opening(part: Part) -> Opening:
    opening = part.opening()
    assert opening is not None
    return opening


def _growing(part: Part) -> list[Drafting]:
    return [line for line in part.lines() if isinstance(line, Drafting)]


def _left(line: Drafting) -> int:
    return line.length - len(line.token_ids)


def _end(part: Part) -> int:
    """Where the trunk ends when everything is read."""
    return part.trunk.path.state.length + len(part.catch_up.missing)


def _rooms(part: Part) -> list[tuple[list[int], int]]:
    """The block tables of the trunk and of the lines, and how many tokens each may have to hold."""
    opening = _opening(part)
    ahead = opening.length - 1 if opening.continues else 0
    lines = [(line.path.state.table, line.path.state.length + _left(line)) for line in _growing(part)]
    return [(part.trunk.path.state.table, _end(part) + ahead), *lines]

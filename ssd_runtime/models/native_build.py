"""A build as one call into the native library: several paths grow by a token a step until all are done."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from ctypes import addressof, sizeof
from dataclasses import dataclass, field
from typing import Any

from ssd_kernels.cpu.library import BuildCall, DrawOfRow, LineOfBuild, RowOfBuild
from ssd_kernels.cpu.matrix import num_threads
from ssd_runtime.messages import BlockCopy, Draw, StopWord

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Draws:
    """What was drawn behind adjacent tokens: each time a token, candidates and their scores.

    Where numbers are of no use the token is negative, and the rest means nothing.
    """

    token_ids: Sequence[int] = ()
    candidates: Sequence[tuple[int, ...]] = ()
    scores: Sequence[tuple[float, ...]] = ()

    def between(self, first: int, end: int) -> Draws:
        """Those from number `first` on, before `end`."""
        return Draws(self.token_ids[first:end], self.candidates[first:end], self.scores[first:end])


@dataclass(slots=True)
class BuildLine:
    """A path that grows: each step reads its last token, and draws the next one behind it.

    table: blocks with room for all that it may read. length: tokens read, or that will have been when it
    opens. first: the token that it reads next; UNKNOWN for a line that waits. limit: most tokens to draw.
    copy: carried out as it opens. Filled in: length, and the draws behind the tokens read.
    """

    table: list[int]
    length: int
    first: int
    limit: int
    copy: BlockCopy | None = None
    draws: Draws = Draws()


@dataclass(slots=True)
class BuildRow:
    """One sequence: its trunk, which reads `token_ids` first, and its lines.

    When all of `token_ids` are read, the lines in `waiting` open: one for each of the likeliest tokens there
    that are not in `end_ids`; or, where the row `continues`, one that goes on in the trunk's own blocks with
    the token drawn there.
    Filled in: read, how many of `token_ids`; draws, the one behind the last of them, if that was read;
    opened, how many of `waiting`.
    """

    draw: Draw
    end_ids: Collection[int]
    table: list[int]
    length: int
    token_ids: Sequence[int]
    lines: list[BuildLine]
    waiting: list[BuildLine] = field(default_factory=list)
    continues: bool = False
    read: int = 0
    draws: Draws = Draws()
    opened: int = 0


@dataclass(frozen=True, slots=True)
class Build:
    """Rows that grow together. A trunk reads `chunk` tokens a step at most; `count` candidates are ranked.

    copies: carried out first, in their order.
    """

    rows: Sequence[BuildRow]
    copies: Sequence[BlockCopy]
    chunk: int
    count: int
    stop: StopWord | None = None


class BuildArrays:
    """The struct of one call, and the arrays that its addresses point to."""

    def __init__(self, build: Build, vocab_size: int) -> None:
        self._build = build
        self._count = min(build.count, vocab_size)
        self._results = 0
        self._tables: list[int] = []
        self._token_ids: list[int] = []
        self._end_ids: list[int] = []
        self._lines: list[int] = []
        rows = [self._row(row) for row in build.rows]
        steps = max(map(self._most_steps, build.rows), default=0)
        self._rows = (RowOfBuild * len(rows))(*rows)
        lines = array("q", self._lines)
        self._line_array = (LineOfBuild * (8 * len(lines) // sizeof(LineOfBuild))).from_buffer(lines)
        self._drawn = array("q", bytes(8 * self._results))
        self._candidates = array("q", bytes(8 * self._results * self._count))
        self._scores = array("f", bytes(4 * self._results * self._count))
        self._step_tokens, self._step_seconds = array("q", bytes(8 * steps)), array("d", bytes(8 * steps))
        copies = [number for copy in build.copies for number in _numbers(copy)]
        inputs = [array("q", ints) for ints in (copies, self._token_ids, self._end_ids, self._tables)]
        self._kept = (build.stop, lines, inputs)
        self.values = BuildCall(
            len(rows), len(build.copies), build.chunk, steps, addressof(self._rows), _address(lines),
            *map(_address, inputs), vocab_size, self._count, _address(self._drawn),
            _address(self._candidates), _address(self._scores), _address(self._step_tokens),
            _address(self._step_seconds), None if build.stop is None else build.stop.address,
            threads=num_threads(),
        )  # fmt: skip

    def note(self) -> list[tuple[int, float]]:
        """After the call: fill in what every row and line reached; tokens and seconds of each step."""
        candidates = list(zip(*[iter(self._candidates)] * self._count, strict=True))
        draws = Draws(self._drawn, candidates, list(zip(*[iter(self._scores)] * self._count, strict=True)))
        for row, values in zip(self._build.rows, self._rows, strict=True):
            self._note_row(row, values, draws)
        done = self.values.progress
        return list(zip(self._step_tokens[:done], self._step_seconds[:done], strict=True))

    def _row(self, row: BuildRow) -> RowOfBuild:
        draw = row.draw
        values = RowOfBuild(
            DrawOfRow(draw.seed, 0, draw.temperature, draw.top_p, draw.min_p, draw.top_k, 0),
            end_at=len(self._end_ids),
            end_count=len(row.end_ids),
            token_at=len(self._token_ids),
            tokens=len(row.token_ids),
            table_at=self._table(row.table),
            length=row.length,
            result_at=self._results,
            line_at=8 * len(self._lines) // sizeof(LineOfBuild),
            lines=len(row.lines),
            waiting=len(row.waiting),
            continues=row.continues,
        )
        self._end_ids += row.end_ids
        self._token_ids += row.token_ids
        # a line that continues the trunk begins with the trunk's own result
        self._results += 0 if row.continues and row.waiting else 1
        for line in (*row.lines, *row.waiting):
            table_at = values.table_at if line.table is row.table else self._table(line.table)
            # the numbers of a `LineOfBuild`, which would take longer to make
            self._lines += (table_at, self._results, line.limit, line.length, line.first, 0)
            self._lines += _numbers(line.copy)
            self._results += line.limit
        return values

    def _table(self, table: Sequence[int]) -> int:
        at = len(self._tables)
        self._tables += table
        return at

    def _most_steps(self, row: BuildRow) -> int:
        reading = -(-len(row.token_ids) // self._build.chunk)
        waiting = max((line.limit for line in row.waiting), default=0)
        return max(reading + waiting, *(line.limit for line in row.lines), 0)

    def _note_row(self, row: BuildRow, values: RowOfBuild, draws: Draws) -> None:
        row.read, row.opened = values.read, values.lines - len(row.lines)
        if row.token_ids and row.read == len(row.token_ids):
            row.draws = draws.between(values.result_at, values.result_at + 1)
        reached = self._line_array[values.line_at : values.line_at + values.lines]
        for line, its in zip((*row.lines, *row.waiting[: row.opened]), reached, strict=True):
            first = its.result_at + row.continues
            line.draws = draws.between(first, first + its.length - line.length)
            line.length = its.length


def _numbers(copy: BlockCopy | None) -> tuple[int, int, int]:
    return (0, 0, 0) if copy is None else (copy.source, copy.target, copy.num_tokens)


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]

"""A build as one call into the native library: several paths grow by a token a step until all are done."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from ctypes import addressof
from dataclasses import dataclass, field
from typing import Any

from ssd_kernels.cpu.library import BuildCall, Copy, DrawOfRow, LineOfBuild, RowOfBuild
from ssd_kernels.cpu.matrix import num_threads
from ssd_runtime.messages import BlockCopy, Draw, StopWord
from ssd_runtime.sampling.draw import DraftStep

UNKNOWN = -1


@dataclass(slots=True)
class BuildLine:
    """A path that grows: each step reads its last token, and draws the next one behind it.

    table: blocks with room for all that it may read. length: tokens read, or that will have been when it
    opens. first: the token that it reads next; UNKNOWN for a line that waits. limit: most tokens to draw.
    copy: carried out as it opens. Filled in: length, first, and a step for each token read.
    """

    table: list[int]
    length: int
    first: int
    limit: int
    copy: BlockCopy | None = None
    steps: Sequence[DraftStep] = ()


@dataclass(slots=True)
class BuildRow:
    """One sequence: its trunk, which reads `token_ids` first, and its lines.

    When all of `token_ids` are read, the lines in `waiting` open: one for each of the likeliest tokens there
    that are not in `end_ids`; or, where the row `continues`, one that goes on in the trunk's own blocks with
    the token drawn there.
    Filled in: read, how many of `token_ids`; step, the draw behind the last of them; opened, how many of
    `waiting`.
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
    step: DraftStep | None = None
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
        self._lines: list[LineOfBuild] = []
        rows = [self._row(row) for row in build.rows]
        steps = max(map(self._most_steps, build.rows), default=0)
        self._rows = (RowOfBuild * len(rows))(*rows)
        self._line_array = (LineOfBuild * len(self._lines))(*self._lines)
        copies = (Copy * len(build.copies))(*map(_copy, build.copies))
        self._drawn = array("q", bytes(8 * self._results))
        self._candidates = array("q", bytes(8 * self._results * self._count))
        self._scores = array("f", bytes(4 * self._results * self._count))
        self._step_tokens, self._step_seconds = array("q", bytes(8 * steps)), array("d", bytes(8 * steps))
        inputs = [array("q", numbers) for numbers in (self._token_ids, self._end_ids, self._tables)]
        self._kept = (build.stop, copies, inputs)
        self.values = BuildCall(
            rows=len(rows),
            copies=len(build.copies),
            chunk=build.chunk,
            steps=steps,
            row=addressof(self._rows),
            line=addressof(self._line_array),
            copy=addressof(copies),
            token_ids=_address(inputs[0]),
            end_ids=_address(inputs[1]),
            tables=_address(inputs[2]),
            drawn_vocab=vocab_size,
            count=self._count,
            drawn=_address(self._drawn),
            candidates=_address(self._candidates),
            scores=_address(self._scores),
            step_tokens=_address(self._step_tokens),
            step_seconds=_address(self._step_seconds),
            stop=None if build.stop is None else build.stop.address,
            threads=num_threads(),
        )

    def note(self) -> list[tuple[int, float]]:
        """After the call: fill in what every row and line reached; tokens and seconds of each step."""
        for row, values in zip(self._build.rows, self._rows, strict=True):
            self._note_row(row, values)
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
            line_at=len(self._lines),
            lines=len(row.lines),
            waiting=len(row.waiting),
            continues=row.continues,
        )
        self._end_ids += row.end_ids
        self._token_ids += row.token_ids
        # a line that continues the trunk begins with the trunk's own result
        self._results += 0 if row.continues and row.waiting else 1
        for line in (*row.lines, *row.waiting):
            copy = Copy() if line.copy is None else _copy(line.copy)
            table_at = values.table_at if line.table is row.table else self._table(line.table)
            self._lines.append(
                LineOfBuild(table_at, self._results, line.limit, line.length, line.first, 0, copy)
            )
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

    def _note_row(self, row: BuildRow, values: RowOfBuild) -> None:
        row.read, row.opened = values.read, values.lines - len(row.lines)
        if row.token_ids and row.read == len(row.token_ids):
            row.step = self._step(values.result_at)
        for i, line in enumerate((*row.lines, *row.waiting[: row.opened]), values.line_at):
            self._note_line(line, self._line_array[i], skipped=int(row.continues))

    def _note_line(self, line: BuildLine, values: LineOfBuild, skipped: int) -> None:
        first = values.result_at + skipped
        line.steps = [self._step(first + i) for i in range(values.length - line.length)]
        line.length, line.first = values.length, values.first

    def _step(self, at: int) -> DraftStep:
        token, first = self._drawn[at], at * self._count
        if token < 0:
            return DraftStep(token, (), ())
        ranked = slice(first, first + self._count)
        return DraftStep(token, tuple(self._candidates[ranked]), tuple(self._scores[ranked]))


def _copy(copy: BlockCopy) -> Copy:
    return Copy(copy.source, copy.target, copy.num_tokens)


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]

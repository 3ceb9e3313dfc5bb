"""What is asked of the target's lane in a round, and whether the answer can be one."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from itertools import starmap
from pathlib import Path
from typing import Any

from ssd_runtime.engine.scheduler import BatchRow
from ssd_runtime.errors import ComputeError
from ssd_runtime.messages import RowFailure, RowResult, Verdict, VerifyCommand, VerifyRow
from ssd_runtime.speculation.proposal import Proposal

ORIGIN_FRAMES = 4


def verify_command(rows: Sequence[BatchRow], proposals: Sequence[Proposal], together: bool) -> VerifyCommand:
    """The target's pass for these rows: pending tokens, then the proposal."""
    return VerifyCommand(tuple(starmap(_verify_row, zip(rows, proposals, strict=True))), together)


def split(command: VerifyCommand) -> tuple[int, int]:
    """Tokens of rows that decode, and of prompts."""
    decoding = reading = 0
    for row in command.rows:
        if row.samples and len(row.token_ids) == 1:
            decoding += 1 + len(row.drafts)
        else:
            reading += len(row.token_ids) + len(row.drafts)
    return decoding, reading


def checked_results(results: Any, command: VerifyCommand) -> list[RowResult]:
    """The results of `command`; raises `ComputeError` where no worker in its senses gives them.

    A row that should have a token and has none would run for ever.
    """
    if not isinstance(results, (list, tuple)) or len(results) != len(command.rows):
        raise ComputeError(f"got {results!r}, expected a result for each of {command.num_rows} rows")
    for row, result in zip(command.rows, results, strict=True):
        if not _is_possible(row, result):
            raise ComputeError(f"got {result!r} for a row with {len(row.drafts)} drafts")
    return list(results)


def origin(error: BaseException) -> str:
    """Where `error` was raised, innermost first; without the values of that moment, which are prompts."""
    frames = reversed(traceback.extract_tb(error.__traceback__)[-ORIGIN_FRAMES:])
    return ", ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames)


def _is_possible(row: VerifyRow, result: RowResult) -> bool:
    match result:
        case Verdict():
            return row.samples and 0 <= result.accepted <= len(row.drafts) and result.bonus >= 0
        case RowFailure():
            return True
        case _:
            return not row.samples


def _verify_row(row: BatchRow, proposal: Proposal) -> VerifyRow:
    sequence = row.sequence
    pending = sequence.token_ids[sequence.kv_len : sequence.kv_len + row.num_feed]
    return VerifyRow(
        token_ids=tuple(pending),
        drafts=proposal.token_ids,
        start=sequence.kv_len,
        block_table=tuple(sequence.table),
        draw=sequence.draw,
        samples=row.samples,
        text=sequence.token_ids,
        num_prompt=sequence.num_prompt,
        odds=proposal.odds,
        sampler=sequence.sampler,
    )

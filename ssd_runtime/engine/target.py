"""What the target's lane does: forward passes and verdicts. Runs on the lane's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ssd_runtime.engine.verdicts import Judge, failure, num_logits
from ssd_runtime.messages import ForwardRow, RowResult, VerifyCommand, VerifyRow
from ssd_runtime.models.native import Ask, draws_natively
from ssd_runtime.sampling.verify import verify

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.sampling.draw import DraftStep


class TargetWorker:
    """Owns the target's decoder and KV; carries out `VerifyCommand`s.

    Where the decoder can draw by itself it does so for plain rows, and logits are made only for the others.
    """

    def __init__(self, decoder: Decoder, kv: PagedKV, sampler: Sampler) -> None:
        self._decoder = decoder
        self._kv = kv
        self._judge = Judge(sampler, decoder.config.vocab_size)
        self._draws = draws_natively(decoder, sampler)

    def execute(self, command: VerifyCommand) -> list[RowResult]:
        """Feed every row in one pass; a verdict for each row that samples."""
        steps, logits = self._pass(command.rows)
        results: list[RowResult] = []
        offset = 0
        for row in command.rows:
            wanted = slice(offset, offset + num_logits(row))
            if self._draws and row.draw.is_plain:
                results.append(_verdict(row, steps[wanted]))
            else:
                results.append(None if logits is None else self._judge.result(row, logits[wanted]))
            offset = wanted.stop
        return results

    def _pass(self, rows: Sequence[VerifyRow]) -> tuple[Sequence[DraftStep], Tensor | None]:
        fed = [_forward_row(row) for row in rows]
        if not self._draws:
            return (), self._decoder.forward(fed, self._kv)
        asks = [ask for row in rows for ask in _asks(row)]
        return self._decoder.draw(fed, self._kv, asks, self._decoder.config.vocab_size)


def _asks(row: VerifyRow) -> Sequence[Ask | None]:
    """What is wanted of each of the row's last tokens; None where it is the logits."""
    if not row.draw.is_plain:
        return [None] * num_logits(row)
    first = row.start + len(row.token_ids)
    expected = (*row.drafts, -1)[: num_logits(row)]
    return [Ask(row.draw, first + i, token) for i, token in enumerate(expected)]


def _verdict(row: VerifyRow, steps: Sequence[DraftStep]) -> RowResult:
    if not row.samples:
        return None
    verdict = verify(row.drafts, (step.token for step in steps))
    return failure(row, verdict.accepted, None) if verdict.bonus < 0 else verdict


def _forward_row(row: VerifyRow) -> ForwardRow:
    return ForwardRow((*row.token_ids, *row.drafts), row.start, row.block_table, num_logits(row))

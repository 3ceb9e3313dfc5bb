"""What the target's lane does: forward passes and verdicts. Runs on the lane's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ssd_runtime.engine.verdicts import Judge, num_logits
from ssd_runtime.messages import ForwardRow, RowResult, VerifyCommand, VerifyRow

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.decoder import Decoder


class TargetWorker:
    """Owns the target's decoder and KV; carries out `VerifyCommand`s."""

    def __init__(self, decoder: Decoder, kv: PagedKV, sampler: Sampler) -> None:
        self._decoder = decoder
        self._kv = kv
        self._judge = Judge(sampler, decoder.config.vocab_size)

    def execute(self, command: VerifyCommand) -> list[RowResult]:
        """Feed every row in one pass; a verdict for each row that samples."""
        logits = self._decoder.forward([_forward_row(row) for row in command.rows], self._kv)
        results: list[RowResult] = []
        offset = 0
        for row in command.rows:
            count = num_logits(row)
            results.append(self._judge.result(row, logits[offset : offset + count]))
            offset += count
        return results


def _forward_row(row: VerifyRow) -> ForwardRow:
    return ForwardRow((*row.token_ids, *row.drafts), row.start, row.block_table, num_logits(row))

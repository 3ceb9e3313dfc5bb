"""What the target's lane does: forward passes and verdicts. Runs on the lane's thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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


MOST_JUDGES = 4
"""Samplers beside the worker's own that are kept ready; one that was put away is made ready again."""


class TargetWorker:
    """Owns the target's decoder and KV; carries out `VerifyCommand`s.

    Where the decoder can draw by itself it does so for plain rows, and logits are made only for the others.
    """

    def __init__(self, decoder: Decoder, kv: PagedKV, sampler: Sampler) -> None:
        """`sampler`: for rows that bring none."""
        self._decoder = decoder
        self._kv = kv
        self._own = self._judge(sampler)
        self._others: dict[int, _Bench] = {}

    def execute(self, command: VerifyCommand) -> list[RowResult]:
        """Feed every row in one pass; a verdict for each row that samples."""
        benches = [self._bench(row.sampler) for row in command.rows]
        drawn = [bench.draws and row.draw.is_plain for bench, row in zip(benches, command.rows, strict=True)]
        steps, logits = self._pass(command.rows, drawn)
        results: list[RowResult] = []
        offset = 0
        for row, bench, is_drawn in zip(command.rows, benches, drawn, strict=True):
            wanted = slice(offset, offset + num_logits(row))
            if is_drawn:
                results.append(_verdict(row, steps[wanted]))
            else:
                results.append(None if logits is None else bench.judge.result(row, logits[wanted]))
            offset = wanted.stop
        return results

    def _pass(
        self, rows: Sequence[VerifyRow], drawn: Sequence[bool]
    ) -> tuple[Sequence[DraftStep], Tensor | None]:
        fed = [_forward_row(row) for row in rows]
        if not any(drawn):
            return (), self._decoder.forward(fed, self._kv)
        asks = [ask for pair in zip(rows, drawn, strict=True) for ask in _asks(*pair)]
        return self._decoder.draw(fed, self._kv, asks, self._decoder.config.vocab_size)

    def _bench(self, sampler: Sampler | None) -> _Bench:
        if sampler is None:
            return self._own
        if id(sampler) not in self._others:
            if len(self._others) >= MOST_JUDGES:
                del self._others[next(iter(self._others))]
            self._others[id(sampler)] = self._judge(sampler)
        return self._others[id(sampler)]

    def _judge(self, sampler: Sampler) -> _Bench:
        judge = Judge(sampler, self._decoder.config.vocab_size)
        return _Bench(judge, sampler, draws_natively(self._decoder, sampler))


class _Bench(NamedTuple):
    """A sampler and its judge. draws: whether the decoder draws the same by itself."""

    judge: Judge
    sampler: Sampler
    draws: bool


def _asks(row: VerifyRow, is_drawn: bool) -> Sequence[Ask | None]:
    """What is wanted of each of the row's last tokens; None where it is the logits."""
    if not is_drawn:
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

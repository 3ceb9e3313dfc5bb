"""What the target's lane does: forward passes and verdicts. Runs on the lane's thread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ssd_runtime.messages import ForwardRow, RowFailure, Verdict, VerifyCommand, VerifyRow
from ssd_runtime.sampling.following import Followers, RuleError
from ssd_runtime.sampling.verify import verify
from ssd_runtime.sampling.warp import is_usable

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.decoder import Decoder


class TargetWorker:
    """Owns the target's decoder and KV; carries out `VerifyCommand`s."""

    def __init__(self, decoder: Decoder, kv: PagedKV, sampler: Sampler) -> None:
        self._decoder = decoder
        self._kv = kv
        self._sampler = sampler
        self._followers = Followers(decoder.config.vocab_size)

    def execute(self, command: VerifyCommand) -> list[Verdict | RowFailure | None]:
        """Feed every row in one pass; a verdict for each row that samples."""
        logits = self._decoder.forward([_forward_row(row) for row in command.rows], self._kv)
        results: list[Verdict | RowFailure | None] = []
        offset = 0
        for row in command.rows:
            count = _num_logits(row)
            results.append(self._verdict(row, logits[offset : offset + count]) if row.samples else None)
            offset += count
        return results

    def _verdict(self, row: VerifyRow, logits: Tensor) -> Verdict | RowFailure:
        try:
            verdict = verify(row.drafts, self._tokens(row, logits))
        except RuleError as error:
            return RowFailure(f"a warper of this request failed: {error}", by_request=True)
        if verdict.bonus < 0:
            return _failure(row, verdict.accepted, logits)
        return verdict

    def _tokens(self, row: VerifyRow, logits: Tensor) -> Iterator[int]:
        """The target's own tokens, drawn only as far as the verdict looks."""
        first = row.start + len(row.token_ids)
        for i, scores in enumerate(self._scores(row, logits)):
            yield self._sampler.draw(scores, [row.draw], [first + i])[0]

    def _scores(self, row: VerifyRow, logits: Tensor) -> Iterator[Tensor]:
        """The logits `[1, V]` of each position as the request's rules leave them, one after another."""
        rules, first = row.draw.rules, row.start + len(row.token_ids)
        for i in range(len(row.drafts) + 1):
            if rules is None:
                yield logits[i : i + 1]
            else:
                yield self._followers.process(rules, logits[i], row.text, first, row.drafts[:i])[None]


def _failure(row: VerifyRow, accepted: int, logits: Tensor) -> RowFailure:
    """Why no token could be drawn after `accepted` drafts."""
    position = row.start + len(row.token_ids) + accepted
    if is_usable(logits[accepted]):
        return RowFailure(
            f"the request's parameters leave no token possible at position {position}; relax its "
            "bans, min_tokens or structured output",
            by_request=True,
        )
    return RowFailure(
        f"the target's logits at position {position} are not finite; the weights or this request's KV "
        "are damaged"
    )


def _num_logits(row: VerifyRow) -> int:
    return len(row.drafts) + 1 if row.samples else 0


def _forward_row(row: VerifyRow) -> ForwardRow:
    return ForwardRow((*row.token_ids, *row.drafts), row.start, row.block_table, _num_logits(row))

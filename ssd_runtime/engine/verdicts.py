"""From a row's logits to its verdict: rules, draws, log probabilities. Runs on the target's lane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from ssd_kernels.arrays import copied
from ssd_runtime.hooks.kinds import Verifier
from ssd_runtime.messages import Reading, RowFailure, RowResult, Verdict, VerifyRow
from ssd_runtime.sampling.following import Followers, RuleError
from ssd_runtime.sampling.logprobs import drawn_from, entry, own, prompt_entries
from ssd_runtime.sampling.verify import verify
from ssd_runtime.sampling.warp import is_usable

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.types import TokenLogprob


class Judge:
    """Says what came of a row, whatever its request asks for. Remembers each request's rules."""

    def __init__(self, sampler: Sampler, vocab_size: int) -> None:
        self._sampler = sampler
        self._verifier = sampler if isinstance(sampler, Verifier) else None
        self._followers = Followers(vocab_size)

    def result(self, row: VerifyRow, logits: Tensor) -> RowResult:
        """What the row's `num_logits(row)` rows of `logits` `[N, V]` say."""
        reading = _reading(row, logits) if _reads(row) else None
        if not row.samples:
            return reading
        return self._verdict(row, logits[len(logits) - len(row.drafts) - 1 :], reading)

    def _verdict(self, row: VerifyRow, logits: Tensor, reading: Reading | None) -> Verdict | RowFailure:
        kept = logits if row.draw.report is None else copied(logits)  # the sampler may overwrite what it gets
        judged: list[Tensor] = []
        try:
            verdict = self._judged(row, _noted(self._scores(row, logits), judged))
        except RuleError as error:
            failed = RowFailure(
                f"a rule of this request failed: {error}", by_request=True, accepted=len(judged)
            )
        else:
            if verdict.bonus >= 0:
                emitted = (*row.drafts[: verdict.accepted], verdict.bonus)
                return replace(verdict, logprobs=self._entries(row, kept, emitted), reading=reading)
            failed = failure(row, verdict.accepted, kept)
        return replace(failed, logprobs=self._entries(row, kept, row.drafts[: failed.accepted]))

    def _entries(self, row: VerifyRow, logits: Tensor, emitted: Sequence[int]) -> tuple[TokenLogprob, ...]:
        """The log probabilities of the first tokens, where they are wanted."""
        report = row.draw.report
        if report is None or report.logprobs is None:
            return ()
        if report.processed:
            scores = islice(self._scores(row, logits), len(emitted))
            kept = [drawn_from(one[0], row.draw) for one in scores]
        else:
            kept = [own(one) for one in logits[: len(emitted)]]
        return tuple(entry(*pair, report.logprobs) for pair in zip(kept, emitted, strict=True))

    def _judged(self, row: VerifyRow, scores: Iterator[Tensor]) -> Verdict:
        """By the sampler's own rule if it has one, else by equality; `scores` are made as far as it looks."""
        first = row.start + len(row.token_ids)
        if self._verifier is not None:
            return self._verifier.verify(row.drafts, row.odds, scores, row.draw, first)
        tokens = (self._sampler.draw(one, [row.draw], [first + i])[0] for i, one in enumerate(scores))
        return verify(row.drafts, tokens)

    def _scores(self, row: VerifyRow, logits: Tensor) -> Iterator[Tensor]:
        """The logits `[1, V]` of each position as the request's rules leave them, one after another."""
        rules, first = row.draw.rules, row.start + len(row.token_ids)
        for i in range(len(row.drafts) + 1):
            if rules is None:
                yield logits[i : i + 1]
            else:
                yield self._followers.process(rules, logits[i], row.text, first, row.drafts[:i])[None]


def _noted(scores: Iterator[Tensor], seen: list[Tensor]) -> Iterator[Tensor]:
    """The same; `seen` collects what was given out: all but the last of them had their draft accepted."""
    for one in scores:
        seen.append(one)
        yield one


def failure(row: VerifyRow, accepted: int, logits: Tensor | None) -> RowFailure:
    """Why no token could be drawn after `accepted` drafts. logits: None for a row that is plain."""
    position = row.start + len(row.token_ids) + accepted
    if logits is not None and is_usable(logits[accepted]):
        return RowFailure(
            f"the request's parameters leave no token possible at position {position}; relax its "
            "bans, min_tokens or structured output",
            by_request=True,
            accepted=accepted,
        )
    return RowFailure(
        f"the target's logits at position {position} are not finite; the weights or this request's KV "
        "are damaged",
        accepted=accepted,
    )


def _reading(row: VerifyRow, logits: Tensor) -> Reading:
    """What the row's tokens say of those behind each of them, as far as the prompt goes."""
    assert row.draw.report is not None
    assert row.draw.report.prompt_logprobs is not None
    first = row.start + 1
    told = row.text[first : min(first + len(row.token_ids), row.num_prompt)]
    return Reading(first, prompt_entries(logits[: len(told)], told, row.draw.report.prompt_logprobs))


def _reads(row: VerifyRow) -> bool:
    """Whether the log probabilities of prompt tokens are wanted, and the row has some."""
    report = row.draw.report
    return report is not None and report.prompt_logprobs is not None and row.start + 1 < row.num_prompt


def num_logits(row: VerifyRow) -> int:
    """How many of the row's last tokens need logits."""
    if _reads(row):
        return row.num_tokens
    return len(row.drafts) + 1 if row.samples else 0

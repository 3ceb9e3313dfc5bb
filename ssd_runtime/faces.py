"""What every face (library, pipe, chat) needs of an engine, and how it puts pieces together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import asdict, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ssd_runtime.errors import EngineError
from ssd_runtime.settings.schema import Settings
from ssd_runtime.types import Answer, Output, Request, SamplingParams, SpeculationStats, TokenLogprob

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""What stands for the logarithm of zero in JSON, which knows no infinity; OpenAI's and vLLM's number."""


class AnsweringEngine(Protocol):
    """What the faces use of `Engine`; `ssd_runtime.testing.fake_engine` has it too."""

    @property
    def settings(self) -> Settings: ...
    @property
    def max_context(self) -> int: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def generate(
        self, request: Request | str, params: SamplingParams | None = None
    ) -> AsyncGenerator[Output, None]: ...
    async def complete(self, request: Request | str, params: SamplingParams | None = None) -> Answer: ...


def requests_ahead(settings: Settings) -> int:
    """Requests that a face hands to the engine at once: rounds stay full, the queue never overflows."""
    return min(4 * settings.engine.max_batch_size, settings.scheduler.max_queue)


def answer_of(pieces: Sequence[Output]) -> Answer:
    """The whole answer that `pieces` are; raises `EngineError` where a last one is missing."""
    indices = sorted({piece.index for piece in pieces})
    if len(indices) <= 1:
        return _one_answer(pieces)
    choices = tuple(_one_answer([piece for piece in pieces if piece.index == index]) for index in indices)
    return replace(choices[0], choices=choices)


def _one_answer(pieces: Sequence[Output]) -> Answer:
    last = pieces[-1] if pieces else None
    if not (last and last.finish_reason and last.timing and last.speculation) or last.seed is None:
        raise EngineError("the answer ended without its last piece; please report this")
    return Answer(
        request_id=last.request_id,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        finish_reason=last.finish_reason,
        prompt_token_ids=last.prompt_token_ids,
        seed=last.seed,
        timing=last.timing,
        speculation=last.speculation,
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        prompt_logprobs=pieces[0].prompt_logprobs,
        cached_tokens=last.cached_tokens,
    )


def speculation_fields(stats: SpeculationStats) -> dict[str, Any]:
    """What answers in JSON say of speculation; the contract's fields."""
    fields = asdict(stats)
    del fields["histograms"]  # for `metrics.speculative_decoding` of HTTP answers
    return fields


def finite(logprob: float | None) -> float | None:
    """`logprob`, or `LEAST_LOGPROB` where it is lower."""
    return None if logprob is None else max(logprob, LEAST_LOGPROB)


def described(entry: TokenLogprob) -> dict[str, Any]:
    """One token as OpenAI's chat completions describe it, and its id."""
    return _named(entry) | {"top_logprobs": [_named(other) for other in entry.top]}


def _named(entry: TokenLogprob) -> dict[str, Any]:
    return {
        "token": entry.token,
        "token_id": entry.token_id,
        "logprob": finite(entry.logprob),
        "bytes": list(entry.spelling),
    }

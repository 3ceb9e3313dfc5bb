"""The values that cross the engine's boundary: parameters, requests, outputs.

Plain data, standard library only. Parsing and checking live in `settings/request.py`,
the engine in `engine/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class FinishReason(StrEnum):
    """Why a request ended, in OpenAI's words where they have one."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Mode(StrEnum):
    """How rounds are run; `scheduler.policy` in YAML."""

    AUTOREGRESSIVE = "autoregressive"
    SPECULATIVE = "speculative"
    SSD = "ssd"
    HYBRID = "hybrid"


class RowMode(StrEnum):
    """How one row's proposal is made in a round. In the low-latency mode proposers without a model are asked
    for one continuation, nothing is prepared, and the target has all cores.
    """

    AUTOREGRESSIVE = "autoregressive"
    SPECULATIVE = "speculative"
    SSD = "ssd"
    LOW_LATENCY = "low_latency"


class StructureKind(StrEnum):
    """How structured output is described."""

    JSON = "json"
    REGEX = "regex"
    LARK = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """What the whole answer must be. text: a JSON schema, a regular expression, or a grammar in Lark's words.

    param: the field of the request that said so.
    """

    kind: StructureKind
    text: str
    param: str = "structured_outputs"


@dataclass(frozen=True, slots=True)
class WarperChoice:
    """A warper by its registered name, with pairs of an option's name and its value."""

    name: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token's natural log probability, and the likeliest tokens in its place, best first.

    logprob: None for the first token of a prompt, which has none; -inf for what could not be drawn.
    spelling: the token's bytes; a part of a character is no text by itself.
    """

    token_id: int
    logprob: float | None
    top: tuple[TokenLogprob, ...] = ()
    spelling: bytes = b""

    @property
    def token(self) -> str:
        """The spelling as text, with U+FFFD for what is none."""
        return self.spelling.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What one request asks of its sampling.

    temperature: 0 is greedy. top_p in (0, 1], 1 is off. top_k 0 is off. min_p in [0, 1], 0 is off.
    repetition_penalty: 1 is off; over prompt and answer. presence_penalty, frequency_penalty: 0 is off;
    over the answer. logit_bias: pairs of a token id and what is added. allowed_token_ids: None is all.
    bad_words: texts that the answer does not contain, as the tokenizer spells them. min_tokens: before
    so many nothing ends the answer. max_tokens: None means up to the context; 0 needs echo or
    prompt_logprobs. seed: None means drawn, and reported back. logprobs, prompt_logprobs: how many
    alternatives are reported beside each token of the answer or the prompt; None reports nothing.
    echo: the text of the answer begins with the prompt. n: how many answers. include_stop_str_in_output:
    the text ends with the stop string, or with the text of the stop token, instead of before it.
    structured_outputs: what the whole answer must be. warpers: plugins that change logits, in order.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    n: int = 1
    structured_outputs: StructuredOutput | None = None
    warpers: tuple[WarperChoice, ...] = ()
    include_stop_str_in_output: bool = False


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Per-request speculation: `None` fields take the engine's settings."""

    enabled: bool = True
    mode: Mode | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    tool_calls: what an earlier answer called, as the chat template wants it: `{id, type, function}`, the
    arguments as a mapping. tool_call_id: the call whose result this turn is. name: of who speaks.
    """

    role: str
    content: str
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Exactly one of `prompt`, `messages`, `prompt_token_ids` is set.

    raw: continue `prompt` as it stands instead of applying the chat template. suffix: what comes after
    the answer; `prompt` is what comes before it. prediction: what the answer is expected to be, which
    makes it faster where it is right and changes nothing else. tools: functions that the chat template
    describes to the model, `{type, function}` each; beside messages only. priority: lower is served
    earlier, where `scheduler.order` looks at it.
    """

    id: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    raw: bool = False
    params: SamplingParams = field(default_factory=SamplingParams)
    speculation: SpeculationParams = field(default_factory=SpeculationParams)
    suffix: str | None = None
    prediction: str | None = None
    priority: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds on a monotonic clock; `queue` is submit to first scheduled."""

    queue_seconds: float = 0.0
    first_token_seconds: float = 0.0
    decode_seconds: float = 0.0
    total_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Counted after truncation, per row and round; the definitions are in `stats.py`.

    histograms: by draft length, how many rounds accepted 0, 1, … of so many draft tokens.
    """

    mode: str = Mode.AUTOREGRESSIVE
    rounds: int = 0
    hits: int = 0
    misses: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()
    draft_weight_bytes: int = 0
    histograms: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Output:
    """One piece of an answer, as `Engine.generate` yields it.

    text, token_ids and logprobs are what is *new*; the last piece has `finish_reason` set and carries
    seed, timing and statistics. The concatenation of all pieces is the answer. The first piece has
    the prompt's log probabilities, where they were asked for. index: which of several answers.
    prompt_token_ids: in the first piece and in the last. cached_tokens: in the last piece, how many of
    the prompt's tokens were found in the prefix cache.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    prompt_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    timing: Timing | None = None
    speculation: SpeculationStats | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    index: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: all pieces of `Output` put together.

    logprobs: one for each of `token_ids`, where they were asked for; prompt_logprobs likewise.
    choices: all answers where several were asked for, this one first. cached_tokens: see `Output`.
    """

    request_id: str
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_token_ids: tuple[int, ...]
    seed: int
    timing: Timing
    speculation: SpeculationStats
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    choices: tuple[Answer, ...] = ()
    cached_tokens: int = 0

    @property
    def every(self) -> tuple[Answer, ...]:
        """All answers, also where there is one."""
        return self.choices or (self,)

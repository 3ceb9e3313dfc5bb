"""The shapes of answers, for `/openapi.json`. Tests hold every answer against them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from ssd_runtime.types import Mode


class Shape(BaseModel):
    """Base of the models here: nothing else is in an answer."""

    model_config = ConfigDict(extra="forbid")


class TokenLogprob(Shape):
    """One token, and the natural logarithm of its probability."""

    token: str
    token_id: int
    logprob: float | None = Field(description="-9999 stands for less; null for a text's first token.")
    bytes: list[int]


class DescribedToken(TokenLogprob):
    """A token with the likeliest ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Shape):
    """The log probabilities of a chat's choice."""

    content: list[DescribedToken]
    refusal: None


class CompletionLogprobs(Shape):
    """The log probabilities of a completion's choice; four lists of one length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class _Choice(Shape):
    index: int
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] = Field(description="The ids of this text.")
    prompt_logprobs: list[DescribedToken] = Field([], description="Where they were asked for.")
    seed: int = Field(0, description="Gives the same answer again; of each choice where there are several.")


class _Part(Shape):
    index: int
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] = Field(description="The ids of this event.")
    prompt_logprobs: list[DescribedToken] = Field([], description="Where they were asked for.")


class Message(Shape):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str
    refusal: None


class Delta(Shape):
    """A piece of the assistant's message; the first one has the role."""

    role: Literal["assistant"] = "assistant"
    content: str


class CompletionChoice(_Choice):
    """One text."""

    text: str
    logprobs: CompletionLogprobs | None


class CompletionPart(_Part):
    """A piece of one text."""

    text: str
    logprobs: CompletionLogprobs | None


class ChatChoice(_Choice):
    """One message."""

    message: Message
    logprobs: ChatLogprobs | None


class ChatPart(_Part):
    """A piece of one message."""

    delta: Delta
    logprobs: ChatLogprobs | None


class CompletionTokens(Shape):
    """Draft tokens, as OpenAI counts predictions."""

    accepted_prediction_tokens: int = Field(ge=0)
    rejected_prediction_tokens: int = Field(ge=0)


class PromptTokens(Shape):
    """What was known of the prompt."""

    cached_tokens: int = Field(ge=0, description="Found in the prefix cache, and so not read again.")


class UsageSoFar(Shape):
    """Tokens; those of all choices, and the prompt once."""

    prompt_tokens: int = Field(ge=0)
    completion_tokens: int = Field(ge=0)
    total_tokens: int = Field(ge=0)


class Usage(UsageSoFar):
    """Tokens of a whole answer, and where they came from."""

    prompt_tokens_details: PromptTokens
    completion_tokens_details: CompletionTokens


class SpeculativeDecoding(Shape):
    """vLLM's figures, over rounds that had a draft."""

    mean_acceptance_length: float = Field(ge=1, description="Tokens a round, the bonus counted.")
    draft_acceptance_rate: float = Field(ge=0, le=1)
    acceptance_histogram: list[int] = Field(description="How many rounds accepted 0, 1, … draft tokens.")
    acceptance_histogram_by_draft_length: dict[str, list[int]]
    num_spec_steps: int = Field(ge=0)
    num_accepted_draft_tokens: int = Field(ge=0)
    num_draft_tokens: int = Field(ge=0)
    num_spec_tokens: int = Field(ge=0, description="The longest draft.")


class Metrics(Shape):
    """What vLLM tells of an answer."""

    speculative_decoding: SpeculativeDecoding | None = Field(
        description="null without speculation, and with n above 1."
    )


class Timing(Shape):
    """Seconds on a monotonic clock."""

    queue_seconds: float = Field(ge=0)
    first_token_seconds: float = Field(ge=0)
    decode_seconds: float = Field(ge=0)
    total_seconds: float = Field(ge=0)


class Speculation(Shape):
    """What speculation did."""

    mode: Mode
    rounds: int = Field(ge=0)
    hits: int = Field(ge=0)
    misses: int = Field(ge=0)
    draft_tokens: int = Field(ge=0)
    accepted_tokens: int = Field(ge=0)
    accepted_per_position: list[int]
    draft_weight_bytes: int = Field(ge=0)


class _Answer(Shape):
    id: str
    created: int
    model: str
    usage: Usage
    metrics: Metrics
    seed: int = Field(description="Gives the same answer again.")
    timing: Timing
    speculation: Speculation


class _Chunk(Shape):
    id: str
    created: int
    model: str
    usage: Usage | UsageSoFar | None = Field(None, description="In the events where it was asked for.")
    metrics: Metrics | None = Field(None, description="Beside the usage.")
    seed: int = Field(0, description="With the finish reason, as are the next two.")
    timing: Timing | None = None
    speculation: Speculation | None = None


class Completion(_Answer):
    """The answer of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice] = Field(min_length=1)


class CompletionChunk(_Chunk):
    """The data of an event of `/v1/completions`."""

    object: Literal["text_completion"]
    choices: list[CompletionPart]


class ChatCompletion(_Answer):
    """The answer of `/v1/chat/completions`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice] = Field(min_length=1)


class ChatCompletionChunk(_Chunk):
    """The data of an event of `/v1/chat/completions`."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChatPart]


class ErrorFields(Shape):
    """What went wrong. param: the dotted name of the field."""

    message: str
    type: str
    param: str | None
    code: str | None


class Error(Shape):
    """Every error, as a body or as the last event of a stream."""

    error: ErrorFields


class Model(Shape):
    """The served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int | None = Field(description="The largest context; null while the model loads.")


class Models(Shape):
    """The list of the one model."""

    object: Literal["list"]
    data: list[Model]


class Tokens(Shape):
    """The answer of `/tokenize`."""

    count: int = Field(ge=0)
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(Shape):
    """The answer of `/detokenize`."""

    prompt: str


class Health(Shape):
    """Whether the process works."""

    status: Literal["ok", "failed"]


class Version(Shape):
    """The version of the runtime."""

    version: str


class Ready(BaseModel):
    """Whether requests are taken, and what else is known of the daemon."""

    status: str
    model: str
    reason: str = Field("", description="Why not.")

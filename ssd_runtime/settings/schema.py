"""Everything that can be configured: one frozen model per YAML section.

The names are those of the contract; the defaults are those of `config/default.yaml` (a test
compares them). A *part* (sampler, quantizer, …) is a name here; whether something provides it is
checked at start, see `settings/available.py`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    Strict,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ssd_runtime.types import Mode

Bool = Annotated[bool, Strict()]
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Name = Annotated[str, Field(min_length=1)]

_DEVICE = re.compile(r"cpu:\d+(-\d+)?|cuda:\d+")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, populate_by_name=True)


class NamedPart(_Section):
    """A part chosen by name, with options of its own: `geometric` or `{name: geometric, lambda: 0.8}`."""

    model_config = ConfigDict(extra="allow")

    name: Name = Field(description="The part's registered name.")

    @property
    def options(self) -> dict[str, Any]:
        """Everything beside the name, handed to the part's factory."""
        return dict(self.model_extra or {})


class QuantizationByBatch(_Section):
    """Weight formats by batch size; a plain name means one format for every batch."""

    small: Name = Field(description="Format for rounds of at most `threshold` rows.")
    large: Name = Field(description="Format for rounds of more than `threshold` rows.")
    threshold: Int = Field(ge=1, description="The largest number of rows that still uses `small`.")

    @property
    def names(self) -> tuple[str, ...]:
        """The formats in use, each once."""
        return tuple(dict.fromkeys((self.small, self.large)))


def _part_from_name(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


def _one_format(value: object) -> object:
    return {"small": value, "large": value, "threshold": 1} if isinstance(value, str) else value


def _check_place(value: object) -> object:
    places = value if isinstance(value, list | tuple) and value else [value]
    if value == "auto" or all(isinstance(place, str) and _DEVICE.fullmatch(place) for place in places):
        return value
    raise ValueError("auto, cpu:0, cpu:0-3, cuda:0 or a list like [cuda:2, cuda:3]")


Part = Annotated[NamedPart, BeforeValidator(_part_from_name, json_schema_input_type=str | NamedPart)]
Quantization = Annotated[
    QuantizationByBatch, BeforeValidator(_one_format, json_schema_input_type=str | QuantizationByBatch)
]
Place = Annotated[str | tuple[str, ...], BeforeValidator(_check_place)]


class EngineSettings(_Section):
    """Models, precision, speculation, and the sampling defaults of requests."""

    model: Name = Field(
        "smollm2-135m",
        validation_alias=AliasChoices("model", "target_model"),
        description="The target: a name, a safetensors folder, a GGUF file or a hub id. Alias: target_model.",
    )
    draft_model: Name = Field(
        "self", description="self, ngram, suffix, a model as above, a plugin's name, or none."
    )
    fallback: tuple[Part, ...] = Field(
        (NamedPart(name="ngram"),),
        description="Proposers tried in order, per row, when the outcome cache misses; options as "
        "{name: suffix, max_cached_requests: 1000}.",
    )
    sampler: Part = Field(
        NamedPart(name="coupled"),
        description="How tokens are drawn and drafts verified: coupled, one text for a seed in every mode; "
        "rejection (options c, fan_out), the ratio rule, under which the modes' texts above temperature 0 "
        "are equal in distribution but not in ids; or a plugin's; options as {name: rejection, c: 0.5}.",
    )
    cache_policy: Part = Field(
        NamedPart(name="adaptive"),
        description="Which outcomes are prepared: adaptive (options slope, bias, lambda), geometric "
        "(acceptance, exponent, lambda), uniform, or a plugin's; options as {name: geometric, lambda: 0.8}.",
    )
    quantization: Quantization = Field(
        QuantizationByBatch(small="none", large="none", threshold=1),
        description="The target's weight format: a name, or {small, large, threshold} by batch size.",
    )
    draft_quantization: Name = Field("int8", description="The draft's weight format.")
    kv_cache_dtype: Literal["float32", "fp16", "fp8", "int8"] = Field(
        "float32", description="Number format of the target's keys and values."
    )
    history_codec: Literal["none", "zstd"] = Field(
        "none",
        description="How the tokens of preempted requests are kept, and of texts that proposers remember: "
        "as they are, or compressed (before Python 3.14 with the package's extra `stores`).",
    )
    max_batch_size: Int = Field(8, ge=1, le=1024, description="Most requests in one round.")
    speculative_length: Int = Field(6, ge=0, le=64, description="K, most draft tokens per row and round.")
    branch_budget: Int = Field(8, ge=0, le=256, description="Most outcomes prepared per row and round.")
    fallback_batch_threshold: Int = Field(
        8,
        ge=0,
        description="Running and waiting requests above which the low-latency mode starts: lookups instead "
        "of the draft. Under `policy: hybrid` what was measured decides instead.",
    )
    temperature: Float = Field(0.7, ge=0, le=2, description="For requests that do not say; 0 is greedy.")
    top_p: Float = Field(0.9, gt=0, le=1, description="For requests that do not say; 1 is off.")
    logprobs_mode: Literal["raw", "processed"] = Field(
        "raw",
        description="Of which distribution log probabilities are: raw, the model's own; processed, what is "
        "drawn from, after penalties, bans, temperature and truncation.",
    )
    enable_prefix_caching: Bool = Field(
        True,
        description="Whether the KV of a prompt's beginning is kept and shared by requests that begin alike.",
    )
    block_size: Int = Field(16, ge=1, le=1024, description="Tokens in one block of the target's KV cache.")
    kv_cache_tokens: Int | None = Field(
        None,
        ge=1,
        description="Tokens in the target's KV cache; left out: max_batch_size × scheduler.max_tokens. "
        "Of what was read and ended, a draft keeps as many at most.",
    )


class SchedulerSettings(_Section):
    """Who runs, in which mode, and how much at once."""

    policy: Mode = Field(Mode.HYBRID, description="How rounds are run, the mode.")
    order: Name = Field(
        "fcfs",
        description="Who is served next: fcfs, priority (lower first, then by arrival), or a plugin's.",
    )
    max_tokens: Int = Field(
        4096, ge=2, description="The context: most tokens of a request, prompt and completion together."
    )
    preempt_mode: Literal["recompute", "swap"] = Field(
        "recompute",
        description="What happens to the KV of a preempted request: it is forgotten and computed again, or "
        "kept in host memory, bit for bit.",
    )
    swap_space: Float = Field(
        4.0,
        ge=0,
        description="GiB of host memory for `preempt_mode: swap`; what finds no room there is recomputed.",
    )
    max_batch_tokens: Int = Field(
        512, ge=1, description="Tokens of one round; a prefill is cut into chunks that fit."
    )
    max_queue: Int = Field(1024, ge=1, description="Waiting requests above which new ones are refused.")


class PlacementSettings(_Section):
    """Which device serves which role."""

    target: Place = Field(
        "auto",
        description="The target: auto (every core that the draft was not given), cpu:0, cpu:0-3, cuda:0, "
        "or a list.",
    )
    draft: Place = Field(
        "auto",
        description="The draft: auto (every core that the target was not given), cpu:0, cpu:0-3, cuda:0, "
        "or a list.",
    )


class ServerSettings(_Section):
    """Where the daemon listens, who may ask, and how long a request may take."""

    host: Name = Field("127.0.0.1", description="Address to listen on.")
    port: Int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_key: SecretStr | None = Field(
        None, min_length=1, description="Key that every request to /v1 must carry; better in the environment."
    )
    api_key_file: Name | None = Field(None, description="File whose text is the key; instead of api_key.")
    request_timeout: Float | None = Field(
        None, gt=0, description="Seconds after which a request is ended; left out: never."
    )
    drain_seconds: Float = Field(
        30.0, ge=0, description="How long a stop waits for running requests before it cancels them."
    )
    max_body_bytes: Int = Field(
        1048576, ge=1024, description="Largest body of a request; larger ones are refused."
    )
    stream_buffer_bytes: Int = Field(
        4194304,
        ge=65536,
        description="Most of a streamed answer that waits for its client; one that falls further behind is "
        "disconnected.",
    )
    send_timeout: Float = Field(
        60.0,
        gt=0,
        description="Seconds after which a client that takes nothing of its answer is disconnected.",
    )
    otlp_endpoint: Name | None = Field(
        None,
        description="Base address of an OTLP/HTTP receiver of traces, such as http://127.0.0.1:4318; needs "
        "the extra `otel`. Left out: no traces.",
    )


class LogSettings(_Section):
    """What is logged to stderr, and how."""

    format: Literal["console", "json"] = Field("console", description="Form of a log line.")
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least level shown.")


class Settings(BaseSettings):
    """The whole configuration. Made in code it is what the code says; `load_settings` reads the rest."""

    model_config = SettingsConfigDict(frozen=True, case_sensitive=True)

    engine: EngineSettings = Field(EngineSettings(), description="Models, precision, speculation.")
    scheduler: SchedulerSettings = Field(SchedulerSettings(), description="Who runs, and in which mode.")
    placement: PlacementSettings = Field(PlacementSettings(), description="Devices of the two roles.")
    plugins: tuple[Name, ...] = Field((), description="Modules to load beside installed entry points.")
    server: ServerSettings = Field(ServerSettings(), description="The daemon: address, key, limits.")
    log: LogSettings = Field(LogSettings(), description="What is logged, and how.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The arguments alone, never the process's environment; see pydantic-settings."""
        return (init_settings,)

    @model_validator(mode="after")
    def _a_round_holds_every_row(self) -> Settings:
        budget, rows = self.scheduler.max_batch_tokens, self.engine.max_batch_size
        if budget < rows:
            raise ValueError(
                f"scheduler.max_batch_tokens: got {budget}, "
                f"expected at least engine.max_batch_size, which is {rows}"
            )
        return self

    @model_validator(mode="after")
    def _there_is_one_key(self) -> Settings:
        if self.server.api_key is not None and self.server.api_key_file is not None:
            raise ValueError("server.api_key_file: got a file beside server.api_key, expected one of the two")
        return self

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens in the target's KV cache, with the default worked out."""
        return self.engine.kv_cache_tokens or self.engine.max_batch_size * self.scheduler.max_tokens

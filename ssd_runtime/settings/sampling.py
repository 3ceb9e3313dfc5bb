"""Sampling parameters as a mapping: names, types and ranges; OpenAI's and vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from ssd_runtime.errors import RequestError
from ssd_runtime.settings.structured import (
    FORMATS,
    FORMATS_SCHEMA,
    OUTPUTS_SCHEMA,
    of_guided,
    of_response_format,
    of_structured_outputs,
)
from ssd_runtime.types import SamplingParams, StructuredOutput, WarperChoice

SEED_RANGE = 2**64
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 1024
MAX_BIASES = 1024
MAX_BAD_WORDS = 1024
MAX_STRUCTURE_CHARACTERS = 65536
MAX_BIAS = 100.0
MAX_TOP = 20
MAX_CHOICES = 128


def _is_unicode(text: str) -> str:
    text.encode()  # JSON can spell half a surrogate pair, which no tokenizer takes
    return text


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _whole(value: object) -> object:
    """1.0 is an integer in JSON, and some clients have no other numbers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _token_keys(value: object) -> object:
    """JSON's keys are texts; here they are token ids."""
    if not isinstance(value, Mapping):
        return value
    return {
        int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() else key: bias
        for key, bias in value.items()
    }


Whole = Annotated[int, BeforeValidator(_whole)]
Word = Annotated[str, AfterValidator(_is_unicode)]
Text = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_is_unicode)]
Integer64 = Annotated[Whole, Field(ge=-(2**63), lt=SEED_RANGE)]
Words = Annotated[list[Annotated[Word, Field(min_length=1)]], Field(max_length=MAX_BAD_WORDS)]
Stop = Annotated[Word, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stops = Annotated[list[Stop], Field(max_length=MAX_STOPS)]
Alternatives = Annotated[Whole, Field(ge=0, le=MAX_TOP)]
TokenId = Annotated[Whole, Field(ge=0)]
Bias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]],
    Field(max_length=MAX_BIASES, json_schema_extra={"propertyNames": {"pattern": "^[0-9]+$"}}),
    BeforeValidator(_token_keys),
]
STRUCTURES = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_AT_LEAST_ONE = "at least 1; 0 only with echo or prompt_logprobs"
_TOKENS = "token ids, which are integers of at least 0"


class Part(BaseModel):
    """Base of the models here; a field's description is what an error message says was expected."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Sampling(Part):
    """The fields of `SamplingParams`, each of which may be left out."""

    temperature: float | None = Field(None, ge=0, le=2, description="a number from 0 (greedy) to 2")
    top_p: float | None = Field(None, gt=0, le=1, description="a number above 0, up to 1 (off)")
    top_k: Whole | None = Field(None, ge=-1, description="an integer: -1 or 0 (off), or at least 1")
    min_p: float | None = Field(None, ge=0, le=1, description="a number from 0 (off) to 1")
    repetition_penalty: float | None = Field(
        None, gt=0, le=10, description="a number above 0, up to 10; 1 is off"
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2; 0 is off")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="a number from -2 to 2; 0 is off")
    logit_bias: Bias | None = Field(
        None,
        description=f"a mapping of at most {MAX_BIASES} token ids "
        f"to numbers from {-MAX_BIAS:g} to {MAX_BIAS:g}",
    )
    allowed_token_ids: list[TokenId] | None = Field(
        None, min_length=1, description=f"a list of at least one of the {_TOKENS}"
    )
    banned_token_ids: list[TokenId] | None = Field(None, description=f"a list of {_TOKENS}")
    bad_words: Words | None = Field(
        None, description=f"a list of at most {MAX_BAD_WORDS} texts, none of them empty"
    )
    min_tokens: Whole | None = Field(None, ge=0, description="an integer, at least 0")
    max_tokens: Whole | None = Field(None, ge=0, description=f"an integer, {_AT_LEAST_ONE}")
    max_completion_tokens: Whole | None = Field(None, ge=1, description="an integer, at least 1")
    stop: Annotated[Stops | None, BeforeValidator(_as_list, json_schema_input_type=Stop | Stops | None)] = (
        Field(
            None,
            description=f"a text or a list of at most {MAX_STOPS} texts "
            f"of 1 to {MAX_STOP_CHARACTERS} characters",
        )
    )
    stop_token_ids: list[TokenId] | None = Field(None, description=f"a list of {_TOKENS}")
    ignore_eos: bool | None = Field(None, description="true or false")
    seed: Integer64 | None = Field(None, description="an integer of 64 bits, signed or unsigned")
    logprobs: bool | Alternatives | None = Field(
        None, description=f"true, false, or how many alternatives are shown beside each token, 0 to {MAX_TOP}"
    )
    top_logprobs: Alternatives | None = Field(None, description=f"an integer from 0 to {MAX_TOP}")
    prompt_logprobs: Alternatives | None = Field(None, description=f"an integer from 0 to {MAX_TOP}")
    echo: bool | None = Field(None, description="true or false")
    n: Whole | None = Field(None, ge=1, le=MAX_CHOICES, description=f"an integer from 1 to {MAX_CHOICES}")
    include_stop_str_in_output: bool | None = Field(None, description="true or false")
    warpers: list[str | dict[str, Any]] | None = Field(
        None, description="a list of names, or of mappings with a name and options"
    )
    response_format: Annotated[dict[str, Any], WithJsonSchema(FORMATS_SCHEMA)] | None = Field(
        None, description=FORMATS
    )
    structured_outputs: Annotated[dict[str, Any], WithJsonSchema(OUTPUTS_SCHEMA)] | None = Field(
        None, description="a mapping with one of json, json_object, regex, choice and grammar"
    )
    guided_json: dict[str, Any] | str | None = Field(None, description="a JSON schema")
    guided_regex: str | None = Field(None, description="a regular expression")
    guided_choice: list[str] | None = Field(None, description="a list of texts")
    guided_grammar: str | None = Field(None, description="a grammar in Lark's notation")

    def applied_to(self, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with everything that was given put over it."""
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name in Sampling.model_fields.keys() & SamplingParams.__dataclass_fields__.keys()
            if (value := getattr(self, name)) is not None
        }
        if self.max_completion_tokens is not None:
            given["max_tokens"] = self._agreed_limit(self.max_completion_tokens)
        if self.top_k is not None:
            given["top_k"] = max(self.top_k, 0)
        if self.seed is not None:
            given["seed"] = self.seed % SEED_RANGE
        if self.logit_bias is not None:
            given["logit_bias"] = tuple(self.logit_bias.items())
        if self.warpers is not None:
            given["warpers"] = tuple(map(_warper, self.warpers))
        given |= self._structure()
        given["logprobs"] = self._alternatives(defaults.logprobs)
        return _checked(replace(defaults, **given))

    def _structure(self) -> dict[str, StructuredOutput | None]:
        given = [name for name in STRUCTURES if getattr(self, name) is not None]
        if len(given) > 1:
            raise RequestError(f"{given[1]}: got it beside {given[0]}, expected one of them", given[1])
        structures = [_short(_structure(name, getattr(self, name))) for name in given]
        return {"structured_outputs": structures[0]} if structures else {}

    def _alternatives(self, default: int | None) -> int | None:
        """OpenAI says `logprobs: true` and `top_logprobs: 2` in chats, and `logprobs: 2` elsewhere."""
        wanted, top = self.logprobs, self.top_logprobs
        if isinstance(wanted, bool) or wanted is None:
            if top and not wanted:
                raise RequestError(f"top_logprobs: got {top}, expected it only with logprobs", "top_logprobs")
            return top or 0 if wanted else default if wanted is None else None
        if top not in (None, wanted):
            raise RequestError(
                f"top_logprobs: got {top}, but logprobs {wanted}; expected one of them", "top_logprobs"
            )
        return wanted

    def _agreed_limit(self, limit: int) -> int:
        if self.max_tokens not in (None, limit):
            raise RequestError(
                f"max_completion_tokens: got {limit}, but max_tokens {self.max_tokens}; expected one of them",
                "max_completion_tokens",
            )
        return limit


def _structure(name: str, asked: Any) -> StructuredOutput | None:
    if name == "response_format":
        return of_response_format(asked)
    if name == "structured_outputs":
        return of_structured_outputs(asked)
    return of_guided(name.removeprefix("guided_"), asked, name)


def _short(structure: StructuredOutput | None) -> StructuredOutput | None:
    if structure is not None and len(structure.text) > MAX_STRUCTURE_CHARACTERS:
        raise RequestError(
            f"{structure.param}: got a description of {len(structure.text)} characters, "
            f"expected at most {MAX_STRUCTURE_CHARACTERS}",
            structure.param,
        )
    return structure


def _warper(asked: str | dict[str, Any]) -> WarperChoice:
    if isinstance(asked, str):
        return WarperChoice(asked)
    name = asked.get("name")
    if not isinstance(name, str):
        raise RequestError(f"warpers: got {str(asked)[:60]}, expected a name in each mapping", "warpers")
    return WarperChoice(name, tuple((key, value) for key, value in asked.items() if key != "name"))


def _checked(params: SamplingParams) -> SamplingParams:
    """Raise where parameters contradict each other."""
    if params.max_tokens == 0 and not params.echo and params.prompt_logprobs is None:
        raise RequestError(f"max_tokens: got 0, expected an integer, {_AT_LEAST_ONE}", "max_tokens")
    if params.structured_outputs and params.ignore_eos:
        raise RequestError(
            f"ignore_eos: got true beside {params.structured_outputs.param}, whose end is an end token",
            "ignore_eos",
        )
    return params

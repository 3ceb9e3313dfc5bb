"""One request as a mapping, from a JSON line or an HTTP body, checked and turned into a `Request`.

Parameters have OpenAI's and vLLM's names. `null` means "left out". What is known but not built is
refused by name, what is unknown is refused too: nothing is ever ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError

from ssd_runtime.errors import RequestError
from ssd_runtime.settings.conversation import MAX_TOOLS, Tool, Turn, messages_of, tools_of
from ssd_runtime.settings.messages import did_you_mean
from ssd_runtime.settings.sampling import SEED_RANGE, Integer64, Part, Sampling, Text, TokenId, Whole, Word
from ssd_runtime.settings.schema import EngineSettings
from ssd_runtime.types import Mode, Request, SamplingParams, SpeculationParams

SHOWN_CHARACTERS = 60
# One name a line would hide the module behind its list.
# fmt: off
NOT_BUILT = frozenset((
    "audio", "chat_template", "chat_template_kwargs", "continue_final_message", "detokenize",
    "function_call", "functions", "logits_processors", "modalities", "parallel_tool_calls",
    "reasoning_effort", "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens",
))
# fmt: on
_NO_BEAMS = "not offered: an answer is drawn token by token, and speculation verifies one; leave it out"
_NO_ADAPTERS = "not offered: the engine serves one set of weights; leave it out"
NOT_OFFERED: Mapping[str, str] = {
    "best_of": "not offered: ask for n answers with logprobs, and choose",
    "beam_width": _NO_BEAMS,
    "use_beam_search": _NO_BEAMS,
    "length_penalty": _NO_BEAMS,
    "early_stopping": _NO_BEAMS,
    "lora": _NO_ADAPTERS,
    "lora_request": _NO_ADAPTERS,
}
_REFUSED = dict.fromkeys(NOT_BUILT, "not supported yet; leave it out") | dict(NOT_OFFERED)
AnyPart = TypeVar("AnyPart", bound=Part)
_INPUTS = ("prompt", "messages", "prompt_token_ids")


def _as_mode(value: object) -> object:
    return Mode(value) if isinstance(value, str) and value in tuple(Mode) else value


class SpeculationChoice(Part):
    """How one request is speculated for."""

    enabled: bool | None = Field(None, description="true or false")
    mode: Annotated[Mode | None, BeforeValidator(_as_mode)] = Field(
        None, description=f"one of {', '.join(Mode)}"
    )
    length: Whole | None = Field(None, ge=0, le=64, description="an integer from 0 to 64")


class TextPart(Part):
    """A piece of a text."""

    type: Literal["text"]
    text: Word


class Prediction(Part):
    """What the answer is expected to be."""

    type: Literal["content"] = Field(description="'content'")
    content: Word | list[TextPart] = Field(description="a text, or a list of {'type': 'text', 'text'}")

    @property
    def text(self) -> str:
        """The parts joined."""
        whole = isinstance(self.content, str)
        return str(self.content) if whole else "".join(part.text for part in self.content)  # type: ignore[union-attr]


class RequestBody(Sampling):
    """Every field of a request."""

    id: Word | Integer64 | None = Field(None, description="a text or an integer")
    prompt: Text | None = Field(
        None, min_length=1, description="a text that is not empty, without NUL characters"
    )
    messages: list[Turn] | None = Field(
        None, min_length=1, description="a list of at least one {role, content}"
    )
    tools: list[Tool] | None = Field(
        None,
        max_length=MAX_TOOLS,
        description=f"a list of at most {MAX_TOOLS} {{'type': 'function', 'function': …}}",
    )
    tool_choice: Literal["none", "auto"] | None = Field(
        None, description="'none' or 'auto': the model is told of the tools, and decides"
    )
    prompt_token_ids: list[TokenId] | None = Field(
        None, min_length=1, description="a list of at least one token id, which are integers of at least 0"
    )
    raw: bool | None = Field(None, description="true or false")
    suffix: Text | None = Field(None, description="a text without NUL characters")
    prediction: Prediction | None = Field(
        None, description="a mapping {'type': 'content', 'content': the text that is expected}"
    )
    speculation: SpeculationChoice | None = Field(None, description="a mapping {enabled, mode, length}")
    priority: Integer64 | None = Field(None, description="an integer; lower is served earlier")

    def checked(self) -> Self:
        """Raise where fields contradict each other."""
        given = [name for name in _INPUTS if getattr(self, name) is not None]
        if len(given) != 1:
            raise RequestError(
                f"got {' and '.join(given) or 'no prompt'}, expected exactly one of {', '.join(_INPUTS)}",
                given[-1] if given else "prompt",
            )
        if self.echo and self.messages is not None:
            raise RequestError("echo: got true with messages, expected it with a prompt", "echo")
        if self.tools and self.messages is None:
            raise RequestError("tools: got some without messages, expected them together", "tools")
        if self.suffix and self.prompt is None:
            raise RequestError("suffix: got one without a prompt, expected it together with prompt", "suffix")
        if self.raw and self.prompt is None:
            raise RequestError("raw: got true without a prompt, expected it together with prompt", "raw")
        return self


def default_params(engine: EngineSettings) -> SamplingParams:
    """The sampling of requests that do not say."""
    return SamplingParams(temperature=engine.temperature, top_p=engine.top_p)


def parse_params(data: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters alone, over `defaults`; raises `RequestError`."""
    return validated(Sampling, data).applied_to(defaults)


def parse_request(
    data: Mapping[str, Any],
    *,
    index: int,
    defaults: SamplingParams,
    seed: int | None = None,
    allowed: Iterable[str] | None = None,
) -> Request:
    """The request that `data` describes; raises `RequestError` with `param` and nothing else.

    index: its place in the input, from 0; the id where `data` has none. seed: where `data` has no
    seed of its own, the request's is `derive_seed(seed, index)`. allowed: see `validated`.
    """
    body = validated(RequestBody, data, allowed).checked()
    if seed is not None:
        defaults = replace(defaults, seed=derive_seed(seed, index))
    return Request(
        id=str(index if body.id is None else body.id),
        prompt=body.prompt,
        messages=None if body.messages is None else messages_of(body.messages),
        prompt_token_ids=None if body.prompt_token_ids is None else tuple(body.prompt_token_ids),
        raw=bool(body.raw),
        params=body.applied_to(defaults),
        speculation=_speculation(body.speculation),
        suffix=body.suffix or None,
        prediction=(body.prediction.text or None) if body.prediction else None,
        priority=body.priority or 0,
        tools=() if body.tool_choice == "none" else tools_of(body.tools or ()),
    )


def readable_id(data: Mapping[str, Any], index: int) -> str | int | None:
    """The id as `data` gives it, `str(index)` where it gives none, None where it is not usable."""
    value = data.get("id")
    if value is None:
        return str(index)
    try:
        return validated(RequestBody, {"id": value}).id
    except RequestError:
        return None


def derive_seed(seed: int, index: int) -> int:
    """The seed (64 bits) of input `index`, from 0: output `index` of SplitMix64 started at `seed`.

    Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
    """
    state = (seed + (index + 1) * 0x9E3779B97F4A7C15) % SEED_RANGE
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % SEED_RANGE
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % SEED_RANGE
    return state ^ (state >> 31)


def _speculation(asked: SpeculationChoice | None) -> SpeculationParams:
    if asked is None:
        return SpeculationParams()
    return SpeculationParams(enabled=asked.enabled is not False, mode=asked.mode, length=asked.length)


def validated(model: type[AnyPart], data: Mapping[str, Any], allowed: Iterable[str] | None = None) -> AnyPart:
    """`data` as `model`; raises `RequestError` with the path to what is wrong.

    allowed: the fields that a message about an unknown one names, by default the model's.
    """
    for name, value in data.items():
        _check_known(model, name, value, allowed)
    try:
        return model.model_validate({name: data[name] for name in data if name in model.model_fields})
    except ValidationError as error:
        raise _request_error(model, error) from None


def _check_known(model: type[Part], name: object, value: object, allowed: Iterable[str] | None) -> None:
    refused = _REFUSED if issubclass(model, Sampling) else {}
    if name in model.model_fields or (name in refused and value is None):
        return
    reason = refused.get(str(name)) or _unknown(str(name), allowed or model.model_fields)
    raise RequestError(f"{_printable(name)}: {reason}", _printable(name))


def _unknown(name: str, allowed: Iterable[str]) -> str:
    names = sorted(allowed)
    return f"unknown field; {did_you_mean(name, names)}allowed: {', '.join(names)}"


def _request_error(model: type[Part], error: ValidationError) -> RequestError:
    first = error.errors(include_url=False, include_context=False)[0]
    part, path, expected = _place(model, first["loc"])
    if first["type"] == "extra_forbidden":
        name = first["loc"][-1]
        param = ".".join(map(_printable, [*path, name]))
        return RequestError(f"{param}: {_unknown(str(name), part.model_fields)}", param)
    param = ".".join(map(_printable, path))
    got = "nothing" if first["type"] == "missing" else _shown(first["input"])
    return RequestError(f"{param}: got {got}, expected {expected}", param)


def _place(model: type[Part], loc: Sequence[int | str]) -> tuple[type[Part], list[int | str], str | None]:
    """Where in a request an error is: the innermost model, the path to it, and what is expected there."""
    part, path, expected = model, list[int | str](), None
    for step in loc:
        field = part.model_fields.get(step) if isinstance(step, str) else None
        if field is not None:
            part, expected = _part_in(field.annotation) or part, field.description
        if field is not None or isinstance(step, int):  # other steps name a member of a union
            path.append(step)
    return part, path, expected


def _part_in(annotation: object) -> type[Part] | None:
    if isinstance(annotation, type) and get_origin(annotation) is None and issubclass(annotation, Part):
        return annotation
    return next(filter(None, map(_part_in, get_args(annotation))), None)


def _printable(name: object) -> str:
    return str(name).encode("utf-8", "backslashreplace").decode()


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        return "an integer of more than 4300 digits"
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"

"""From a request to a sequence: text to ids, limits, defaults. Runs outside the engine's loop."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, fields

from ssd_runtime.engine.rules import check_ids, rules_of
from ssd_runtime.engine.stopping import AnswerEnd
from ssd_runtime.errors import ContextLengthError, RequestError
from ssd_runtime.hooks.kinds import Sampler, Warper
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.memory.prediction import Prediction
from ssd_runtime.messages import Draw, Report
from ssd_runtime.models.conversation import chat_ids
from ssd_runtime.models.infill import infill_ids, plain_ids
from ssd_runtime.models.text_decoder import text_decoder
from ssd_runtime.models.tokenizer import Tokenizer
from ssd_runtime.sequence import Sequence
from ssd_runtime.settings.request import derive_seed, parse_params
from ssd_runtime.types import Message, Request, SamplingParams

SEED_BITS = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """What holds for every request: `context` tokens in all, ids below `vocab_size`.

    processed_logprobs: log probabilities are those of the distribution that is drawn from. warpers: what
    requests may name. uses_priority: whether the order of service looks at a request's priority. sampler:
    what draws for whoever begins now; None is the one that the target's lane was made with.
    """

    context: int
    vocab_size: int
    processed_logprobs: bool = False
    warpers: Registry[Warper] = field(default_factory=lambda: Registry("warper"))
    uses_priority: bool = True
    sampler: Sampler | None = None


Prepared = tuple[Sequence, AnswerEnd]
"""A sequence, and the rules that end it."""


def prepare(request: Request, tokenizer: Tokenizer, limits: Limits) -> Prepared:
    """The one answer of `request`, or the first of several; see `prepare_choices`."""
    return prepare_choices(request, tokenizer, limits)[0]


def prepare_choices(request: Request, tokenizer: Tokenizer, limits: Limits) -> list[Prepared]:
    """What `request` asks for, `n` times. The first has the request's seed, each other one derived from it.

    Raises `RequestError` for an impossible prompt or parameter, `ContextLengthError` when prompt and
    completion do not fit the context. Tokenising a long text takes a while: call it on a worker thread.
    """
    params = _checked(request.params)
    _check_priority(request, limits)
    token_ids = _prompt_ids(request, tokenizer, limits)
    first = secrets.randbits(SEED_BITS) if params.seed is None else params.seed % 2**SEED_BITS
    seeds = [first, *(derive_seed(first, index) for index in range(1, params.n))]
    return [_choice(request, params, list(token_ids), seed, tokenizer, limits) for seed in seeds]


def _choice(
    request: Request,
    params: SamplingParams,
    token_ids: list[int],
    seed: int,
    tokenizer: Tokenizer,
    limits: Limits,
) -> Prepared:
    max_tokens = _max_tokens(params, len(token_ids), limits)
    eos = () if params.ignore_eos else tokenizer.eos_token_ids
    end_ids = frozenset((*eos, *params.stop_token_ids))
    rules = rules_of(
        params,
        tokenizer,
        num_prompt=len(token_ids),
        end_ids=end_ids,
        vocab_size=limits.vocab_size,
        warpers=limits.warpers,
    )
    report = _report(params, limits)
    draw = Draw(seed, params.temperature, params.top_k, params.top_p, params.min_p, rules, report)
    sequence = Sequence(request, len(token_ids), token_ids, draw, len(token_ids) + max_tokens, end_ids)
    sequence.sampler = limits.sampler
    if request.prediction is not None:
        sequence.prediction = Prediction(plain_ids(tokenizer, request.prediction))
    end = AnswerEnd(
        text_decoder(tokenizer),
        end_ids=end_ids,
        stop_strings=params.stop,
        max_tokens=max_tokens,
        min_tokens=params.min_tokens,
        echo=_echo(request, tokenizer, token_ids) if params.echo else "",
        include_stop=params.include_stop_str_in_output,
    )
    return sequence, end


def _checked(params: SamplingParams) -> SamplingParams:
    """Parameters made by hand keep the same rules as those that came as JSON."""
    given = {each.name: getattr(params, each.name) for each in fields(params)}
    given["logit_bias"] = dict(params.logit_bias)
    given["structured_outputs"] = given["warpers"] = None  # checked when they are made
    lists = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}
    return parse_params({name: value for name, value in lists.items() if value not in (None, [])}, params)


def _check_priority(request: Request, limits: Limits) -> None:
    if request.priority and not limits.uses_priority:
        raise RequestError(
            f"priority: got {request.priority}, but this engine serves in another order; expected 0, or an "
            "engine with scheduler.order: priority",
            "priority",
        )


def _report(params: SamplingParams, limits: Limits) -> Report | None:
    if params.logprobs is None and params.prompt_logprobs is None:
        return None
    return Report(params.logprobs, params.prompt_logprobs, limits.processed_logprobs)


def _echo(request: Request, tokenizer: Tokenizer, token_ids: list[int]) -> str:
    if request.messages is not None:
        raise RequestError("echo: got true with messages, expected it with a prompt", "echo")
    return request.prompt if request.prompt is not None else tokenizer.decode(token_ids)


def _prompt_ids(request: Request, tokenizer: Tokenizer, limits: Limits) -> list[int]:
    if request.suffix is not None and request.prompt is None:
        raise RequestError("suffix: got one without a prompt, expected it together with prompt", "suffix")
    if request.prompt_token_ids is not None:
        token_ids = list(request.prompt_token_ids)
        check_ids("prompt_token_ids", token_ids, limits.vocab_size)
    elif request.messages is not None:
        token_ids = chat_ids(tokenizer, request.messages, request.tools)
    else:
        token_ids = _text_ids(request, tokenizer)
    if not token_ids:
        raise RequestError("the prompt is empty: got 0 tokens, expected at least 1", "prompt")
    return token_ids


def _text_ids(request: Request, tokenizer: Tokenizer) -> list[int]:
    if not request.prompt:
        raise RequestError("the prompt is empty: got '', expected some text", "prompt")
    if request.suffix is not None:
        return infill_ids(tokenizer, request.prompt, request.suffix)
    if request.raw or not tokenizer.has_chat_template:
        return tokenizer.encode(request.prompt)
    return tokenizer.render_chat([Message("user", request.prompt)])


def _max_tokens(params: SamplingParams, num_prompt: int, limits: Limits) -> int:
    left = limits.context - num_prompt
    wanted = params.max_tokens
    least = 0 if wanted == 0 else 1
    if left < least or (wanted is not None and wanted > left):
        completion = "at least 1 token" if wanted is None else f"max_tokens {wanted}"
        raise ContextLengthError(
            f"the context holds {limits.context} tokens (the least of scheduler.max_tokens, "
            f"engine.kv_cache_tokens and what the model was made for); got a prompt of {num_prompt} "
            f"tokens and {completion}; shorten the prompt or lower max_tokens",
            "max_tokens" if left >= least else "prompt",
        )
    most = left if wanted is None else wanted
    if params.min_tokens > most:
        raise RequestError(
            f"min_tokens: got {params.min_tokens}, expected at most {most}, as many as there may be",
            "min_tokens",
        )
    return most

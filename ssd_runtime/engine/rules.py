"""From a request's parameters to the rules that its logits obey. Runs outside the engine's loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ssd_runtime.errors import ConfigError, RequestError
from ssd_runtime.hooks.kinds import Warper
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.messages import Rules
from ssd_runtime.models.grammars import compiled
from ssd_runtime.models.infill import plain_ids
from ssd_runtime.models.tokenizer import Tokenizer
from ssd_runtime.sampling.processors import Plugged
from ssd_runtime.types import SamplingParams, WarperChoice


def rules_of(
    params: SamplingParams,
    tokenizer: Tokenizer,
    *,
    num_prompt: int,
    end_ids: frozenset[int],
    vocab_size: int,
    warpers: Registry[Warper],
) -> Rules | None:
    """The rules that `params` ask for, None where they ask for none; raises `RequestError`.

    Token ids are those of the model, below `vocab_size`.
    """
    check_ids("logit_bias", (token for token, _ in params.logit_bias), vocab_size)
    check_ids("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
    check_ids("banned_token_ids", params.banned_token_ids, vocab_size)
    if params.min_tokens:
        check_ids("stop_token_ids", params.stop_token_ids, vocab_size)
    structure = params.structured_outputs
    rules = Rules(
        num_prompt,
        logit_bias=params.logit_bias,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        bad_words=_spellings(params.bad_words, tokenizer),
        min_tokens=params.min_tokens,
        end_ids=end_ids if params.min_tokens else frozenset(),
        allowed_token_ids=params.allowed_token_ids,
        grammar=compiled(structure, tokenizer, vocab_size) if structure else None,
        banned_token_ids=params.banned_token_ids,
        warpers=tuple(_warper(choice, warpers, num_prompt) for choice in params.warpers),
    )
    return None if _say_nothing(rules) else rules


def check_ids(name: str, token_ids: Iterable[int], vocab_size: int) -> None:
    """Raise `RequestError` for the first of `token_ids` that the model does not have."""
    wrong = next((token for token in token_ids if not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise RequestError(f"{name}: got {wrong}, expected ids from 0 to {vocab_size - 1}", name)


def _say_nothing(rules: Rules) -> bool:
    nothing = Rules(rules.num_prompt)
    return all(getattr(rules, name) == getattr(nothing, name) for name in Rules.__dataclass_fields__)


def _warper(choice: WarperChoice, warpers: Registry[Warper], num_prompt: int) -> Callable[[], Plugged]:
    """Makes the warper for one lane; it is made once here, to see whether its options are right."""

    def make() -> Plugged:
        return Plugged(warpers.get(choice.name)(**dict(choice.options)), num_prompt)

    try:
        make()
    except ConfigError as error:
        raise RequestError(f"warpers: {error}", "warpers") from error
    except Exception as error:
        raise RequestError(
            f"warpers: {choice.name!r} failed: {type(error).__name__}: {error}", "warpers"
        ) from error
    return make


def _spellings(words: Iterable[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The ids of each word at the start of a text and behind a space, without the model's start token."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word.lstrip()}"):
            token_ids = plain_ids(tokenizer, text)
            if not token_ids:
                raise RequestError(f"bad_words: got {word!r}, which has no tokens", "bad_words")
            found[tuple(token_ids)] = None
    return tuple(found)

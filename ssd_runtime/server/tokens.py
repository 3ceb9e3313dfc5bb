"""`/tokenize` and `/detokenize`, with vLLM's fields."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from ssd_runtime.errors import RequestError
from ssd_runtime.server.calls import check_model
from ssd_runtime.server.service import Service
from ssd_runtime.server.turns import plain_turns
from ssd_runtime.settings.conversation import MAX_TOOLS, Tool, Turn, messages_of, tools_of
from ssd_runtime.settings.request import validated
from ssd_runtime.settings.sampling import Part, Text, TokenId, Word

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer

_MODEL = "the name of the served model"


class TextBody(Part):
    """A text to tokenise."""

    model: Word | None = Field(None, description=_MODEL)
    prompt: Text = Field(description="a text without NUL characters")
    add_special_tokens: bool | None = Field(None, description="true (the default) or false")
    return_token_strs: bool | None = Field(None, description="true or false")

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids, by default with the model's own start token."""
        from ssd_runtime.models.infill import plain_ids  # loads torch, which the door must not

        special = self.add_special_tokens is not False
        return tokenizer.encode(self.prompt) if special else plain_ids(tokenizer, self.prompt)


class ChatBody(Part):
    """A conversation to tokenise, in the model's chat template."""

    model: Word | None = Field(None, description=_MODEL)
    messages: list[Turn] = Field(min_length=1, description="a list of at least one {role, content}")
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS, description="a list of tools")
    add_generation_prompt: bool | None = Field(None, description="true (the default) or false")
    return_token_strs: bool | None = Field(None, description="true or false")

    def token_ids(self, tokenizer: Tokenizer) -> list[int]:
        """The ids, by default ready for the answer."""
        from ssd_runtime.models.conversation import chat_ids

        for_answer = self.add_generation_prompt is not False
        return chat_ids(
            tokenizer, messages_of(self.messages), tools_of(self.tools or ()), for_answer=for_answer
        )


class DetokenizeBody(Part):
    """Ids to spell out."""

    model: Word | None = Field(None, description=_MODEL)
    tokens: list[TokenId] = Field(description="a list of token ids, which are integers of at least 0")


Work = Callable[[], Mapping[str, Any]]
"""What a worker thread does; its result is the answer."""


def tokenizing(service: Service, body: Mapping[str, Any]) -> Work:
    """What `/tokenize` does with `body`; raises `RequestError`."""
    asked = (
        validated(ChatBody, plain_turns(body))
        if body.get("messages") is not None
        else validated(TextBody, body)
    )
    check_model(asked.model, service.model)
    tokenizer, context = service.tokenizer, service.max_context

    def work() -> Mapping[str, Any]:
        token_ids = asked.token_ids(tokenizer)
        names = _names(tokenizer, token_ids) if asked.return_token_strs else None
        return {"count": len(token_ids), "max_model_len": context, "tokens": token_ids, "token_strs": names}

    return work


def detokenizing(service: Service, body: Mapping[str, Any]) -> Work:
    """What `/detokenize` does with `body`; raises `RequestError`."""
    asked = validated(DetokenizeBody, body)
    check_model(asked.model, service.model)
    tokenizer = service.tokenizer
    for place, token in enumerate(asked.tokens):
        if token >= tokenizer.vocab_size:
            param = f"tokens.{place}"
            raise RequestError(f"{param}: got {token}, expected less than {tokenizer.vocab_size}", param)
    return lambda: {"prompt": _spelled_out(tokenizer, asked.tokens)}


async def done(work: Work) -> Mapping[str, Any]:
    """The result of `work`, which a long text keeps busy for a while."""
    return await asyncio.to_thread(work)


def _names(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """As the vocabulary spells them."""
    names = tokenizer.tokens()
    return [names[token] for token in token_ids]


def _spelled_out(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    """Text, with special tokens by their names."""
    runs = [(key, list(run)) for key, run in itertools.groupby(token_ids, tokenizer.special_ids.__contains__)]
    return "".join(
        "".join(_names(tokenizer, run)) if is_special else tokenizer.decode(run) for is_special, run in runs
    )

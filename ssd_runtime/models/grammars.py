"""Grammars over a tokenizer's vocabulary, compiled by llguidance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from ssd_runtime.errors import RequestError
from ssd_runtime.models.infill import plain_ids
from ssd_runtime.models.tokenizer import Tokenizer
from ssd_runtime.sampling.grammar import GrammarMask
from ssd_runtime.types import StructuredOutput, StructureKind

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"[\x20\x0A\x0D\x09]{0,20}"
"""Between the parts of a JSON text: enough for indentation, and not for blanks without end."""


PRINTABLE = range(0x20, 0x7F)
"""Bytes that must be tokens, so that whatever a grammar asks for can be written."""


def compiled(asked: StructuredOutput, tokenizer: Tokenizer, vocab_size: int) -> Callable[[], GrammarMask]:
    """Makes a mask at the beginning of what `asked` describes; raises `RequestError`.

    Takes from milliseconds to a second, the first time for a tokenizer longer: call it on a worker thread.
    """
    if not set(map(bytes, zip(PRINTABLE))) <= set(tokenizer.spellings()):
        raise RequestError(f"{asked.param}: this model's tokens cannot spell every text", asked.param)
    if not tokenizer.eos_token_ids:
        raise RequestError(
            f"{asked.param}: this model has no end token, which structured output needs", asked.param
        )
    made_by: Any = tokenizer  # hashable, as every object is that says nothing else
    return partial(_mask, _matcher(asked, made_by, vocab_size), frozenset(tokenizer.eos_token_ids))


def _mask(matcher: LLMatcher, end_ids: frozenset[int]) -> GrammarMask:
    return GrammarMask(matcher.deep_copy(), end_ids)


@lru_cache(maxsize=64)
def _matcher(asked: StructuredOutput, tokenizer: Any, vocab_size: int) -> LLMatcher:
    from llguidance import LLMatcher

    vocabulary = _vocabulary(tokenizer, vocab_size)
    grammar = _grammar(asked)
    failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, vocabulary)
    if failed:
        raise RequestError(f"{asked.param}: cannot be followed: {messages[0].strip()}", asked.param)
    matcher = LLMatcher(vocabulary, grammar, log_level=0)
    if matcher.is_error():
        raise RequestError(f"{asked.param}: cannot be followed: {matcher.get_error().strip()}", asked.param)
    return matcher


def _grammar(asked: StructuredOutput) -> str:
    from llguidance import LLMatcher

    match asked.kind:
        case StructureKind.JSON:
            options: Any = {"whitespace_flexible": True, "whitespace_pattern": WHITESPACE}
            try:
                return LLMatcher.grammar_from_json_schema(asked.text, defaults=options)
            except ValueError as error:
                raise RequestError(f"{asked.param}: is no JSON: {error}", asked.param) from error
        case StructureKind.REGEX:
            return LLMatcher.grammar_from_regex(asked.text)
        case StructureKind.LARK:
            return LLMatcher.grammar_from_lark(asked.text)


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int) -> LLTokenizer:
    from llguidance import LLTokenizer, TokenizerWrapper

    wrapped = TokenizerWrapper(_Wrapped(tokenizer))
    return LLTokenizer(wrapped, n_vocab=vocab_size, eos_token=list(tokenizer.eos_token_ids))


class _Wrapped:
    """A tokenizer as llguidance wants one: what the ids of a text spell is that text.

    Where the grammar leaves no choice, it takes the ids that this gives for the text that must come.
    """

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.eos_token_id = tokenizer.eos_token_ids[0]
        self.tokens = list(tokenizer.spellings())
        self.special_token_ids = sorted(tokenizer.special_ids | set(tokenizer.eos_token_ids))
        self._tokenizer = tokenizer
        special = set(self.special_token_ids)
        self._ids = {spelling: i for i, spelling in enumerate(self.tokens) if spelling and i not in special}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        data = text.encode()  # bytes have no such method, so that llguidance sees that texts are wanted
        token_ids = plain_ids(self._tokenizer, text)
        spelt = b"".join(self.tokens[token] for token in token_ids)
        return token_ids if spelt == data else list(self._greedy(data))

    def _greedy(self, data: bytes) -> Iterator[int]:
        """The longest known piece, again and again, up to the first byte that no token spells."""
        while data:
            sizes = range(min(self._longest, len(data)), 0, -1)
            size = next((size for size in sizes if data[:size] in self._ids), 0)
            if not size:
                return
            yield self._ids[data[:size]]
            data = data[size:]

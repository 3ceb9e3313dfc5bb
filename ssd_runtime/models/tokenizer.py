"""Text to token ids and back: what the runtime asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ssd_runtime.types import Message


class Tokenizer(Protocol):
    """What the engine needs of a tokenizer.

    eos_token_ids: every id that ends an answer. special_ids: ids that `decode` skips.
    byte_ids: ids that stand for one raw byte each and are decoded a run at a time.
    """

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    special_ids: frozenset[int]
    byte_ids: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text, with the model's own start token where it has one."""
        ...

    def render_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation in the model's chat template, ready for the answer."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`, special tokens left out."""
        ...


_REPLACEMENT = "\ufffd"


class TextDecoder:
    """Turns tokens into text as they come; the pieces joined are `decode` of all tokens.

    Never gives half a character: bytes that may still become one are held back until they do, or
    until `flush`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._anchor = 0
        self._given = 0

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain once `token_ids` have come; may be empty."""
        return "".join(map(self._push, token_ids))

    def flush(self) -> str:
        """What is still held back, as far as it can be text."""
        text = self._tokenizer.decode(self._window)
        rest = text[self._given :]
        self._given = len(text)
        return rest

    def _push(self, token_id: int) -> str:
        if token_id in self._tokenizer.special_ids:
            return ""
        self._window.append(token_id)
        if token_id in self._tokenizer.byte_ids:
            return ""
        text = self._tokenizer.decode(self._window)
        certain = text.removesuffix(_REPLACEMENT)
        new = certain[self._given :]
        self._given = max(self._given, len(certain))
        if certain == text and new:
            self._shorten()
        return new

    def _shorten(self) -> None:
        """Forget tokens before the last whole character but one: one is kept as context for spaces."""
        if self._anchor:
            del self._window[: self._anchor]
            self._given = len(self._tokenizer.decode(self._window))
        self._anchor = len(self._window)

"""Tokens into text as they come, without ever giving half a character.

The pieces joined are the tokenizer's `decode` of all tokens. Bytes that may still become a character are
held back until they do, or until `flush`.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

from ssd_runtime.models.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


def text_decoder(tokenizer: Tokenizer) -> PieceDecoder | WindowDecoder:
    """What decodes one answer."""
    if tokenizer.pieces is not None:
        return PieceDecoder(tokenizer.pieces)
    return WindowDecoder(tokenizer)


class PieceDecoder:
    """For tokens that are bytes whatever stands around them: one lookup each."""

    def __init__(self, pieces: Mapping[int, bytes]) -> None:
        """`pieces`: see `Tokenizer.pieces`."""
        self._pieces = pieces
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that is certain once `token_ids` have come; may be empty."""
        return self._utf8.decode(b"".join(map(self._pieces.__getitem__, token_ids)))

    def flush(self) -> str:
        """What is still held back, as far as it can be text."""
        return self._utf8.decode(b"", True)


class WindowDecoder:
    """For any tokenizer: decodes the latest tokens again with each new one."""

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

"""What tokens are in bytes: a token may be part of a character, and no text by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from ssd_runtime.types import Output, TokenLogprob

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_WORD_START = "\u2581"


@cache
def _bytes_of_characters() -> dict[int, int]:
    """The printable characters by which byte-level vocabularies (GPT-2's and later) spell bytes.

    The others below 256 stand for something that is no byte.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    known = {byte: byte for byte in printable} | {256 + i: byte for i, byte in enumerate(others)}
    return dict.fromkeys(others, 256) | known


def byte_level(token: str) -> bytes:
    """A token of a byte-level vocabulary; one that is not spelled so (an added token) as it stands."""
    try:
        return token.translate(_bytes_of_characters()).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()


def word_level(token: str) -> bytes:
    """A token of a SentencePiece vocabulary."""
    found = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(found[1], 16)]) if found else token.replace(_WORD_START, " ").encode()


def spelled(piece: Output, spellings: Sequence[bytes]) -> Output:
    """`piece` with the spelling of every token in its log probabilities."""
    return replace(
        piece,
        logprobs=tuple(_spelled(entry, spellings) for entry in piece.logprobs),
        prompt_logprobs=tuple(_spelled(entry, spellings) for entry in piece.prompt_logprobs),
    )


def _spelled(entry: TokenLogprob, spellings: Sequence[bytes]) -> TokenLogprob:
    known = entry.token_id < len(spellings)
    top = tuple(_spelled(other, spellings) for other in entry.top)
    return replace(entry, spelling=spellings[entry.token_id] if known else b"", top=top)

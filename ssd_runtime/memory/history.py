"""Token ids of texts that only wait: packed on request (`engine.history_codec`), read like any sequence."""

from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, overload

HistoryCodec = Callable[[Sequence[int]], Sequence[int]]
"""Makes of token ids a sequence of the same ids that takes less memory."""

_MODULES = ("compression.zstd", "zstandard")
"""Python's own since 3.14, and the package; both have `compress` and `decompress`."""


class PackedTokens(Sequence[int]):
    """Token ids, compressed with zstd as 32-bit numbers. Every look unpacks all of them."""

    __slots__ = ("_data", "_length")

    def __init__(self, token_ids: Sequence[int]) -> None:
        """Only where `history_codecs` has it."""
        self._length = len(token_ids)
        self._data: bytes = _zstd().compress(array("i", token_ids).tobytes())

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed ids."""
        return len(self._data)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[int]: ...
    def __getitem__(self, at: int | slice) -> int | Sequence[int]:
        return self._unpacked()[at]

    def __iter__(self) -> Iterator[int]:
        return iter(self._unpacked())

    def _unpacked(self) -> list[int]:
        numbers = array("i")
        numbers.frombytes(_zstd().decompress(self._data))
        return numbers.tolist()


def history_codecs() -> dict[str, HistoryCodec]:
    """The codecs that can be had here, by name; `none` leaves the ids as they are."""
    codecs: dict[str, HistoryCodec] = {"none": lambda token_ids: token_ids}
    if _zstd() is not None:
        codecs["zstd"] = PackedTokens
    return codecs


@cache
def _zstd() -> Any:
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None

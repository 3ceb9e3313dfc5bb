"""A GGUF's blocks as they lie in the file: where they are, and their codes and scales.

Of the types that the native library multiplies as they are. Formulas as in llama.cpp's `ggml-quants.c`;
each value is the one that `gguf.dequantize` gives, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_kernels.cpu.coded import CodedWeight

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class BlockPlace:
    """Where one weight's blocks are. type: as `GGMLQuantizationType` calls it; offset: in bytes.

    heads: how many heads' rows llama.cpp has reordered, see `unpermute`; 0 for none.
    """

    type: str
    offset: int
    shape: tuple[int, int]
    heads: int = 0


class StoredWeights(Mapping[str, CodedWeight]):
    """The weights of a GGUF file that lie in such blocks, by Hugging Face's names; read when asked for."""

    def __init__(self, path: Path, places: Mapping[str, BlockPlace]) -> None:
        self._path, self._places = path, places

    def __getitem__(self, name: str) -> CodedWeight:
        place = self._places[name]
        kind = TYPES[place.type]
        out, inputs = place.shape
        row = inputs // kind.inputs * kind.bytes
        blocks = np.memmap(self._path, np.uint8, "r", place.offset, (out, row))
        weight = decoded(place.type, np.array(blocks))
        if not place.heads:
            return weight
        minima = None if weight.minima is None else unpermute(weight.minima, place.heads)
        codes, scales = unpermute(weight.codes, place.heads), unpermute(weight.scales, place.heads)
        return CodedWeight(codes, scales, minima)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's reordering of query and key rows (rotary pairs adjacent → halves apart)."""
    pairs = weight.view(heads, len(weight) // heads // 2, 2, *weight.shape[1:])
    return pairs.transpose(1, 2).reshape(weight.shape)


def decoded(kind: str, rows: Bytes) -> CodedWeight:
    """Blocks of the type `kind`, `[out, bytes of a row]`, as codes and scales, which may not be finite."""
    with np.errstate(invalid="ignore"):
        return TYPES[kind].decode(rows.reshape(len(rows), -1, TYPES[kind].bytes))


def _halves(blocks: Bytes) -> NDArray[np.float32]:
    """`[out, blocks, 2 n]` bytes → `[out, blocks, n]`."""
    return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32)


def _nibbles(blocks: Bytes, run: int) -> Bytes:
    """The low nibbles of `run` bytes, then their high ones, and so on: `[out, blocks, 2 · bytes]`."""
    runs = blocks.reshape(*blocks.shape[:2], -1, 1, run)
    both = np.concatenate((runs & np.uint8(15), runs >> np.uint8(4)), axis=3)
    return both.reshape(*blocks.shape[:2], -1)


def _weight(
    codes: NDArray[np.int8] | Bytes, scales: NDArray[np.float32], minima: object = None
) -> CodedWeight:
    def flat(array: object) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array).reshape(len(codes), -1))

    return CodedWeight(flat(codes), flat(scales), None if minima is None else flat(minima))


def _q4_0(blocks: Bytes) -> CodedWeight:
    """scale · (code − 8)."""
    scales = _halves(blocks[..., :2])
    return _weight(_nibbles(blocks[..., 2:], 16), scales, -8 * scales)


def _q4_1(blocks: Bytes) -> CodedWeight:
    factors = _halves(blocks[..., :4])
    return _weight(_nibbles(blocks[..., 4:], 16), factors[..., 0], factors[..., 1])


def _q8_0(blocks: Bytes) -> CodedWeight:
    return _weight(blocks[..., 2:].view(np.int8), _halves(blocks[..., :2]))


def _q4_k(blocks: Bytes) -> CodedWeight:
    """Eight groups, with 6-bit factors of a scale and of a minimum to subtract, packed in bytes 4 … 15."""
    shared = _halves(blocks[..., :4])
    first, second, rest = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6 << 4)), axis=-1)
    minima = np.concatenate((second & 63, (rest >> 4) | (second >> 6 << 4)), axis=-1)
    return _weight(_nibbles(blocks[..., 16:], 32), shared[..., :1] * scales, -(shared[..., 1:] * minima))


def _q6_k(blocks: Bytes) -> CodedWeight:
    """Sixteen groups of 16 inputs with int8 factors of a scale; codes are 4 low and 2 high bits, less 32."""
    low = _nibbles(blocks[..., :128], 64)
    packed = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32)
    high = (packed >> np.array([[0], [2], [4], [6]], np.uint8) & np.uint8(3)).reshape(low.shape)
    codes = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
    return _weight(codes, blocks[..., 192:208].view(np.int8) * _halves(blocks[..., 208:]))


@dataclass(frozen=True, slots=True)
class BlockType:
    """How many inputs and bytes a block has, and what reads it: `[out, blocks, bytes]` → a weight."""

    inputs: int
    bytes: int
    decode: Callable[[Bytes], CodedWeight]


TYPES = {
    "Q4_0": BlockType(32, 18, _q4_0),
    "Q4_1": BlockType(32, 20, _q4_1),
    "Q8_0": BlockType(32, 34, _q8_0),
    "Q4_K": BlockType(256, 144, _q4_k),
    "Q6_K": BlockType(256, 210, _q6_k),
}

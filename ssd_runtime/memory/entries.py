"""How keys and values are stored: floats as they are, or codes of one byte with a scale per vector.

An entry holds what one token has for one head: its key, its value, and, where they are codes, their two
float32 scales. A vector's codes depend on that vector alone, so what was appended together does not matter.
The native library (`kv.h`) reads and writes the same entries.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float16)
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The types of codes, and the code that the largest magnitude of a vector gets."""

SCALE_BYTES = 4
_SMALLEST = 1e-30
"""A vector with nothing larger is stored as zeros: 1 / x is still finite."""


def item_bytes(dtype: torch.dtype) -> int:
    """Bytes of one number, the scales not counted."""
    return int(dtype.itemsize)


def entry_bytes(dtype: torch.dtype, head_dim: int) -> int:
    """Bytes of one token's entry for one head."""
    scales = 2 * SCALE_BYTES if dtype in LARGEST else 0
    return 2 * head_dim * item_bytes(dtype) + scales


def to_float16(vectors: Tensor) -> Tensor:
    """Nearest float16: what is too large becomes the largest, what is not finite NaN."""
    limit = torch.finfo(torch.float16).max
    return (vectors.clamp(-limit, limit) + vectors * 0).half()


def encode(vectors: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys and values `[N, heads, 2, head_dim]` float32 → entries `[N, heads, entry bytes]` uint8.

    A vector that is not finite has the scale NaN.
    """
    largest = vectors.abs().amax(-1, keepdim=True)
    finite = largest < torch.inf
    inverse = torch.where(finite & (largest > _SMALLEST), LARGEST[dtype] / largest, 0.0)
    scaled = torch.where(finite, vectors, 0.0) * inverse
    codes = scaled.round().to(dtype) if dtype is torch.int8 else scaled.to(dtype)
    scales = torch.where(finite, largest / LARGEST[dtype], torch.nan)
    return torch.cat((codes.view(torch.uint8).flatten(2), scales.flatten(2).view(torch.uint8)), -1)


def decode(entries: Tensor, dtype: torch.dtype) -> Tensor:
    """Entries `[N, entry bytes]` uint8 → keys and values `[N, 2 · head_dim]` float32."""
    codes, scales = entries.tensor_split((-2 * SCALE_BYTES,), -1)
    vectors = codes.view(dtype).float().view(len(entries), 2, -1)
    return (vectors * scales.view(torch.float32)[:, :, None]).flatten(1)

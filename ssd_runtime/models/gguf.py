"""Reading GGUF files: metadata, and every tensor type that the package `gguf` dequantises."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, dequantize
from torch import Tensor

from ssd_runtime.errors import ModelError
from ssd_runtime.models.config import DecoderConfig, from_gguf
from ssd_runtime.models.gguf_blocks import TYPES, BlockPlace, unpermute

MAGIC = b"GGUF"

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_DIVISORS = "rope_freqs.weight"
_BULKY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.scores")


class GGUFFile:
    """One open GGUF file. Raises ModelError when it is none, is cut short, or cannot be run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reader = _open(path)
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.metadata: dict[str, Any] = {
            key: field.contents() for key, field in self._reader.fields.items() if key not in _BULKY
        }

    def config(self) -> DecoderConfig:
        """The decoder that the file describes."""
        embedding = self._tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelError(f"{self.path}: has no tensor 'token_embd.weight'; is it a language model?")
        try:
            config = from_gguf(
                self.metadata,
                vocab_size=int(embedding.shape[1]),
                tied="output.weight" not in self._tensors,
                qkv_bias="blk.0.attn_q.bias" in self._tensors,
            )
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from error
        divisors = self._tensors.get(_ROPE_DIVISORS)
        if divisors is None:
            return config
        values = tuple(float(value) for value in divisors.data)
        return replace(config, rope=replace(config.rope, frequency_divisors=values))

    def weights(self, config: DecoderConfig) -> Iterator[tuple[str, Tensor]]:
        """Every weight under its Hugging Face name, float32, one at a time."""
        for name, tensor in self._tensors.items():
            if name == _ROPE_DIVISORS:
                continue
            weight, heads = self._dequantised(tensor), self._permuted_heads(name, config)
            yield self._hf_name(name), unpermute(weight, heads) if heads else weight

    def places(self, config: DecoderConfig) -> dict[str, BlockPlace]:
        """Where the weights lie that can be used as they are stored, by their Hugging Face names."""
        return {
            self._hf_name(name): BlockPlace(
                tensor.tensor_type.name,
                int(tensor.data_offset),
                (int(tensor.shape[1]), int(tensor.shape[0])),
                self._permuted_heads(name, config),
            )
            for name, tensor in self._tensors.items()
            if tensor.tensor_type.name in TYPES and len(tensor.shape) == 2
        }

    @property
    def num_weights(self) -> int:
        """How many weights `weights` yields."""
        return len(self._tensors) - (_ROPE_DIVISORS in self._tensors)

    def _permuted_heads(self, name: str, config: DecoderConfig) -> int:
        """How many heads' rows of the tensor llama.cpp has reordered."""
        match = _LAYER_NAME.fullmatch(name)
        if match is None or self.metadata["general.architecture"] != "llama":
            return 0
        return {"attn_q": config.heads, "attn_k": config.kv_heads}.get(match[2], 0)

    def _hf_name(self, name: str) -> str:
        if name in _GLOBAL_NAMES:
            return _GLOBAL_NAMES[name]
        match = _LAYER_NAME.fullmatch(name)
        if match is None or match[2] not in _LAYER_NAMES:
            raise ModelError(f"{self.path}: tensor {name!r} belongs to no architecture that is supported")
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"

    def _dequantised(self, tensor: Any) -> Tensor:
        try:
            with np.errstate(all="ignore"):
                values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(
                f"{self.path}: tensor {tensor.name!r} has type {kind}, which cannot be read"
            ) from error
        return torch.from_numpy(np.array(values, dtype=np.float32))


class _BoundedReader(GGUFReader):  # type: ignore[misc]
    """GGUFReader that knows where the file ends."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        self._check_end(int(offset) + np.dtype(dtype).itemsize * int(count), "its header")
        return super()._get(offset, dtype, count, override_order)

    def _build_tensors(self, start_offs: int, fields: list[Any]) -> None:
        ends = {bytes(field.parts[1]).decode(): start_offs + _tensor_end(field) for field in fields}
        if ends:
            last = max(ends, key=lambda name: ends[name])
            self._check_end(ends[last], f"tensor {last!r}")
        super()._build_tensors(start_offs, fields)

    def _check_end(self, end: int, what: str) -> None:
        size = self.data.size
        if end > size:
            raise ModelError(
                f"the file is truncated: {what} ends at byte {end}, the file has {size} bytes; "
                f"at least {end - size} bytes are missing; download it again"
            )


def _tensor_end(field: Any) -> int:
    """Where a tensor ends, in bytes from the start of the data."""
    dims, kind, offset = field.parts[3], field.parts[4], field.parts[5]
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind[0])]
    num_bytes: int = int(np.prod(dims)) * size // block
    return int(offset[0]) + num_bytes


def _open(path: Path) -> GGUFReader:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != MAGIC:
            raise ModelError(f"{path}: not a GGUF file: it begins with {magic!r}, expected {MAGIC!r}")
        return _BoundedReader(path)
    except ModelError as error:
        raise ModelError(str(error) if str(path) in str(error) else f"{path}: {error}") from error
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not a usable GGUF file: {error}") from error

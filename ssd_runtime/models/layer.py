"""One layer's weights, and how they are taken out of a model's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ssd_kernels.cpu.coded import CodedWeight, joined
from ssd_runtime.errors import ModelError
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.linear import CodeQuantizer, Quantizer, WeightMatrix, moved


@dataclass(slots=True)
class DecoderLayer:
    """One layer's weights; projections that read the same input are one matrix."""

    window: int | None
    qkv: WeightMatrix
    qkv_bias: Tensor | None
    qk_norm: Tensor | None
    output: WeightMatrix
    output_bias: Tensor | None
    gate_up: WeightMatrix
    gate_up_bias: Tensor | None
    down: WeightMatrix
    down_bias: Tensor | None
    input_norm: Tensor
    post_norm: Tensor

    def to(self, device: torch.device) -> DecoderLayer:
        """The same weights on `device`."""
        return DecoderLayer(
            **{field.name: _moved(getattr(self, field.name), device) for field in fields(self)}
        )


def _moved(value: Any, device: torch.device) -> Any:
    """A field of a layer on `device`: a vector or a matrix; everything else is nowhere."""
    if isinstance(value, Tensor):
        return value.to(device)
    return moved(value, device) if callable(value) else value


class Loader:
    """Takes named weights out of the mapping, checks their shapes and packs them."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        quantizer: Quantizer,
        stored: Mapping[str, CodedWeight],
    ) -> None:
        self.config, self.weights, self.quantizer, self.stored = config, weights, quantizer, stored

    def take(self, names: Sequence[str], *shape: int) -> Tensor:
        """The named weights one below the other, `shape` in all."""
        missing = [name for name in names if name not in self.weights]
        if missing:
            raise ModelError(
                f"the model's weights lack {missing[0]!r}; the files do not fit its configuration"
            )
        parts = [self.weights[name] for name in names]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        if joined.shape != shape:
            raise ModelError(f"weight {', '.join(names)}: got shape {tuple(joined.shape)}, expected {shape}")
        return joined

    def pack(self, names: Sequence[str], out: int, inputs: int) -> WeightMatrix:
        """A quantized matrix `[out, inputs]`, of the file's own codes where the quantizer takes them."""
        matrix = self._pack_codes(names, out, inputs)
        return self.quantizer.pack(self.take(names, out, inputs).float()) if matrix is None else matrix

    def _pack_codes(self, names: Sequence[str], out: int, inputs: int) -> WeightMatrix | None:
        if not isinstance(self.quantizer, CodeQuantizer) or not all(name in self.stored for name in names):
            return None
        weight = joined([self.stored[name] for name in names])
        if weight is None or weight.codes.shape != (out, inputs) or not weight.is_finite:
            return None
        return self.quantizer.pack_codes(weight)

    def vector(self, names: Sequence[str], size: int) -> Tensor:
        """A vector in memory of its own: small, and the file need not stay open for it."""
        return self.take(names, size).to(torch.float32, copy=True)

    def bias(self, wanted: bool, names: Sequence[str], size: int) -> Tensor | None:
        """A bias, where the configuration has one."""
        return self.vector(names, size) if wanted else None

    def layer(self, index: int) -> DecoderLayer:
        """All weights of layer `index`."""
        config, at = self.config, f"model.layers.{index}"
        hidden, inner = config.hidden, config.intermediate
        qkv_size = (config.heads + 2 * config.kv_heads) * config.head_dim
        qkv = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
        gate_up = [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"]
        output, down = f"{at}.self_attn.o_proj", f"{at}.mlp.down_proj"
        return DecoderLayer(
            window=config.window(index),
            qkv=self.pack([f"{name}.weight" for name in qkv], qkv_size, hidden),
            qkv_bias=self.bias(config.qkv_bias, [f"{name}.bias" for name in qkv], qkv_size),
            qk_norm=self.qk_norm(at),
            output=self.pack([f"{output}.weight"], hidden, config.heads * config.head_dim),
            output_bias=self.bias(config.output_bias, [f"{output}.bias"], hidden),
            gate_up=self.pack([f"{name}.weight" for name in gate_up], 2 * inner, hidden),
            gate_up_bias=self.bias(config.mlp_bias, [f"{name}.bias" for name in gate_up], 2 * inner),
            down=self.pack([f"{down}.weight"], hidden, inner),
            down_bias=self.bias(config.mlp_bias, [f"{down}.bias"], hidden),
            input_norm=self.vector([f"{at}.input_layernorm.weight"], hidden),
            post_norm=self.vector([f"{at}.post_attention_layernorm.weight"], hidden),
        )

    def qk_norm(self, at: str) -> Tensor | None:
        """Norm weights of all query and key heads, `[heads + kv_heads, head_dim]`."""
        config = self.config
        if not config.qk_norm:
            return None
        query = self.vector([f"{at}.self_attn.q_norm.weight"], config.head_dim)
        key = self.vector([f"{at}.self_attn.k_norm.weight"], config.head_dim)
        return torch.cat((query.expand(config.heads, -1), key.expand(config.kv_heads, -1)))

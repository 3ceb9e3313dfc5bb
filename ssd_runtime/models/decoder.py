"""One decoder-only transformer for the Llama, Mistral and Qwen families, run by its configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ssd_runtime.device.transfer import HOST, Transfer
from ssd_runtime.errors import ModelError
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow, StopWord
from ssd_runtime.models.attention import QUERY_TILE, Plan, attend, make_plan
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.linear import Quantizer, TiledMatrix, WeightMatrix, moved
from ssd_runtime.models.rope import rope_frequencies

_EMBEDDING = "model.embed_tokens.weight"


class Interrupted(Exception):
    """A forward pass met its stop word. What it wrote to the KV past `start` is garbage."""


@dataclass(slots=True)
class _Layer:
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

    def to(self, device: torch.device) -> _Layer:
        """The same weights on `device`."""
        return _Layer(**{field.name: _moved(getattr(self, field.name), device) for field in fields(self)})


class Decoder:
    """A decoder with its weights. `weights` are float32 under Hugging Face's names.

    A token's logits are the same to the last bit alone, in any batch and in any chunking.
    Raises ModelError when a weight is missing or has another shape than `config` says.
    """

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor], quantizer: Quantizer) -> None:
        self.config = config
        loader = _Loader(config, weights, quantizer)
        head = _EMBEDDING if config.tie_embeddings else "lm_head.weight"
        # stays in the file that it is mapped from: a pass touches a few rows of it
        self._embedding = loader.take([_EMBEDDING], config.vocab_size, config.hidden)
        self._head = loader.pack([head], config.vocab_size, config.hidden)
        self._norm = loader.vector(["model.norm.weight"], config.hidden)
        self._layers = [loader.layer(index) for index in range(config.layers)]
        self._frequencies, factor = rope_frequencies(config)
        # queries and keys both carry the fourth root, so that scores come out divided by √head_dim
        self._rope_factor = factor * config.head_dim**-0.25
        self._tile: int | None = None
        self.transfer: Transfer = HOST

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight matrices that a pass reads whole, as allocated."""
        inner = [m for layer in self._layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return sum(matrix.nbytes for matrix in (self._head, *inner))

    def use_tiles(self) -> None:
        """From now on make every product over `QUERY_TILE` tokens: slower, for unruly libraries."""
        self._tile = QUERY_TILE
        self._head = TiledMatrix(self._head)
        for layer in self._layers:
            layer.qkv, layer.output = TiledMatrix(layer.qkv), TiledMatrix(layer.output)
            layer.gate_up, layer.down = TiledMatrix(layer.gate_up), TiledMatrix(layer.down)

    def to(self, transfer: Transfer) -> Decoder:
        """The same decoder where `transfer` leads, for the lane that `transfer` belongs to.

        Weights that are there already are shared. Raises `NotAvailableError`, see `moved`.
        """
        placed, device = copy.copy(self), transfer.device
        placed.transfer = transfer
        placed._embedding, placed._norm = self._embedding.to(device), self._norm.to(device)
        placed._frequencies, placed._head = self._frequencies.to(device), moved(self._head, device)
        placed._layers = [layer.to(device) for layer in self._layers]
        return placed

    def shallow(self, layers: int) -> Decoder:
        """The same decoder cut off after its first `layers` layers; the weights are shared."""
        cut = copy.copy(self)
        cut._layers = self._layers[:layers]
        cut.config = replace(self.config, layers=layers, windows=self.config.windows[:layers])
        return cut

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32) -> PagedKV:
        """An empty KV store of this decoder's shape, where its weights are."""
        config, device = self.config, self.transfer.device
        with self.transfer.use():
            return PagedKV(
                config.layers, num_blocks, block_size, config.kv_heads, config.head_dim, dtype, device
            )

    @torch.inference_mode()
    def forward(self, rows: Sequence[ForwardRow], kv: PagedKV, stop: StopWord | None = None) -> Tensor:
        """Feed `rows`, write their KV, and return the wanted logits, rows in order.

        Each row feeds at least one token. Returns `[Σ num_logits, vocab]` float32, in host memory. The
        stop word is polled between layers; when it is set, raises Interrupted.
        """
        plan = make_plan(rows, kv, self.config, self._tile, self.transfer)
        x = self._embedding.index_select(0, plan.token_ids).float()
        cos, sin = self._rotation(plan.positions)
        for index, layer in enumerate(self._layers):
            if stop is not None and stop.is_set():
                raise Interrupted
            x = x + self._attention(index, layer, self._normed(x, layer.input_norm), (cos, sin), plan, kv)
            x = x + _mlp(layer, self._normed(x, layer.post_norm))
        return self.transfer.down(self._logits(x, plan.logits))

    def _logits(self, x: Tensor, wanted: Tensor) -> Tensor:
        if not len(wanted):
            return x.new_empty(0, self.config.vocab_size)
        return self._head(self._normed(x.index_select(0, wanted), self._norm))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.rms_eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos `[N, 1, D]` and sin `[N, 1, D / 2]`, scaled."""
        angles = positions.float()[:, None] * self._frequencies
        cos = (angles.cos() * self._rope_factor).repeat(1, 2)
        return cos[:, None], (angles.sin() * self._rope_factor)[:, None]

    def _attention(
        self, index: int, layer: _Layer, x: Tensor, rotation: tuple[Tensor, Tensor], plan: Plan, kv: PagedKV
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = _affine(layer.qkv, x, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, config.head_dim)
        qk, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            qk = functional.rms_norm(qk, (config.head_dim,), None, config.rms_eps) * layer.qk_norm
        qk = _rotate(qk, *rotation)
        entries = torch.cat(_contained(qk[:, heads:], value), -1)
        kv.write(index, plan.slots, entries.view(len(entries), -1))
        queries = qk[:, :heads].reshape(-1, config.head_dim)
        mixed = attend(queries, index, plan, kv, layer.window)
        return _affine(layer.output, mixed.view(len(x), -1), layer.output_bias)


def _moved(value: Any, device: torch.device) -> Any:
    """A field of a layer on `device`: a vector or a matrix; everything else is nowhere."""
    if isinstance(value, Tensor):
        return value.to(device)
    return moved(value, device) if callable(value) else value


def _affine(matrix: WeightMatrix, x: Tensor, bias: Tensor | None) -> Tensor:
    product = matrix(x)
    return product if bias is None else product + bias


def _mlp(layer: _Layer, x: Tensor) -> Tensor:
    gate, up = _affine(layer.gate_up, x, layer.gate_up_bias).chunk(2, -1)
    # written out: the library's silu rounds the ends of an array differently from its middle
    activated = (gate * up).div_(gate.neg().exp_().add_(1))
    return _affine(layer.down, activated, layer.down_bias)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of `x` `[N, heads, D]`, halves paired."""
    first, second = x.chunk(2, -1)
    rotated = x * cos
    low, high = rotated.chunk(2, -1)
    low.addcmul_(second, sin, value=-1)
    high.addcmul_(first, sin)
    return rotated


def _contained(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Move what is not finite from values to keys.

    A hidden position has weight zero, and 0 · NaN would still spoil the sum over values, whereas
    the scores of hidden keys are overwritten. Who may see the position gets NaN from its key.
    """
    return torch.addcmul(key, value, value.new_zeros(())), value.nan_to_num(0.0, 0.0, 0.0)


class _Loader:
    """Takes named weights out of the mapping, checks their shapes and packs them."""

    def __init__(self, config: DecoderConfig, weights: Mapping[str, Tensor], quantizer: Quantizer) -> None:
        self.config, self.weights, self.quantizer = config, weights, quantizer

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
        """A quantized matrix `[out, inputs]`."""
        return self.quantizer.pack(self.take(names, out, inputs).float())

    def vector(self, names: Sequence[str], size: int) -> Tensor:
        """A vector in memory of its own: small, and the file need not stay open for it."""
        return self.take(names, size).to(torch.float32, copy=True)

    def bias(self, wanted: bool, names: Sequence[str], size: int) -> Tensor | None:
        """A bias, where the configuration has one."""
        return self.vector(names, size) if wanted else None

    def layer(self, index: int) -> _Layer:
        """All weights of layer `index`."""
        config, at = self.config, f"model.layers.{index}"
        hidden, inner = config.hidden, config.intermediate
        qkv_size = (config.heads + 2 * config.kv_heads) * config.head_dim
        qkv = [f"{at}.self_attn.{name}_proj" for name in "qkv"]
        gate_up = [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"]
        output, down = f"{at}.self_attn.o_proj", f"{at}.mlp.down_proj"
        return _Layer(
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

"""One decoder-only transformer for the Llama, Mistral and Qwen families, run by its configuration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from ssd_kernels.cpu.coded import CodedWeight
from ssd_runtime.device.transfer import HOST, Transfer
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow, Interrupted, StopWord
from ssd_runtime.models.attention import QUERY_TILE, Plan, attend, make_plan
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.layer import DecoderLayer, Loader
from ssd_runtime.models.linear import Quantizer, TiledMatrix, WeightMatrix, moved
from ssd_runtime.models.native import Ask, NativePass, is_native
from ssd_runtime.models.native_build import Build
from ssd_runtime.models.rope import rope_frequencies
from ssd_runtime.sampling.draw import DraftStep

_EMBEDDING = "model.embed_tokens.weight"


class Decoder:
    """A decoder with its weights. `weights` are float32 under Hugging Face's names; `stored` has those of
    them that a file keeps as codes, with the same values.

    A token's logits are the same to the last bit alone, in any batch and in any chunking.
    Raises ModelError when a weight is missing or has another shape than `config` says.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: Mapping[str, Tensor],
        quantizer: Quantizer,
        stored: Mapping[str, CodedWeight] | None = None,
    ) -> None:
        self.config = config
        loader = Loader(config, weights, quantizer, stored or {})
        head = _EMBEDDING if config.tie_embeddings else "lm_head.weight"
        # stays in the file that it is mapped from: a pass touches a few rows of it
        self.embedding = loader.take([_EMBEDDING], config.vocab_size, config.hidden)
        self.head = loader.pack([head], config.vocab_size, config.hidden)
        self.norm = loader.vector(["model.norm.weight"], config.hidden)
        self.layers = [loader.layer(index) for index in range(config.layers)]
        self.frequencies, factor = rope_frequencies(config)
        # queries and keys both carry the fourth root, so that scores come out divided by √head_dim
        self.rope_factor = factor * config.head_dim**-0.25
        self._tile: int | None = None
        self.transfer: Transfer = HOST
        self._native = self._native_pass()

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weight matrices that a pass reads whole, as allocated."""
        return sum(matrix.nbytes for matrix in self._matrices())

    @property
    def can_draw(self) -> bool:
        """Whether `draw` is there: every matrix is in the native library's panels."""
        return self._native is not None

    def use_tiles(self) -> None:
        """From now on make every product over `QUERY_TILE` tokens: slower, for unruly libraries."""
        self._tile, self._native = QUERY_TILE, None
        self.head = TiledMatrix(self.head)
        for layer in self.layers:
            layer.qkv, layer.output = TiledMatrix(layer.qkv), TiledMatrix(layer.output)
            layer.gate_up, layer.down = TiledMatrix(layer.gate_up), TiledMatrix(layer.down)

    def to(self, transfer: Transfer) -> Decoder:
        """The same decoder where `transfer` leads, for the lane that `transfer` belongs to.

        Weights that are there already are shared. Raises `NotAvailableError`, see `moved`.
        """
        placed, device = copy.copy(self), transfer.device
        placed.transfer = transfer
        placed.embedding, placed.norm = self.embedding.to(device), self.norm.to(device)
        placed.frequencies, placed.head = self.frequencies.to(device), moved(self.head, device)
        placed.layers = [layer.to(device) for layer in self.layers]
        placed._native = placed._native_pass()
        return placed

    def shallow(self, layers: int) -> Decoder:
        """The same decoder cut off after its first `layers` layers; the weights are shared."""
        cut = copy.copy(self)
        cut.layers = self.layers[:layers]
        cut.config = replace(self.config, layers=layers, windows=self.config.windows[:layers])
        cut._native = cut._native_pass() if self.can_draw else None
        return cut

    def new_kv(self, num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32) -> PagedKV:
        """An empty KV store of this decoder's shape, where its weights are."""
        config, device = self.config, self.transfer.device
        with self.transfer.use():
            return PagedKV(
                config.layers, num_blocks, block_size, config.kv_heads, config.head_dim, dtype, device
            )

    def reserve(self, tokens: int, wanted: int) -> None:
        """On the calling thread, take memory for passes over `tokens` tokens with draws behind `wanted`.

        Without it the first pass of a new size would: a process would seem to leak whenever a batch is larger
        than all before. Where there is no native library nothing is kept from pass to pass. Raises
        MemoryError.
        """
        if self._native is not None:
            self._native.reserve(tokens, wanted)

    @torch.inference_mode()
    def forward(self, rows: Sequence[ForwardRow], kv: PagedKV, stop: StopWord | None = None) -> Tensor:
        """Feed `rows`, write their KV, and return the wanted logits, rows in order.

        Each row feeds at least one token. Returns `[Σ num_logits, vocab]` float32, in host memory. The
        stop word is polled between layers; once it interrupts, raises Interrupted.
        """
        if self._native is not None:
            return self._native.logits(rows, kv, stop)
        plan = make_plan(rows, kv, self.config, self._tile, self.transfer)
        x = self.embedding.index_select(0, plan.token_ids).float()
        cos, sin = self._rotation(plan.positions)
        for index, layer in enumerate(self.layers):
            if stop is not None and stop.interrupts():
                raise Interrupted
            x = x + self._attention(index, layer, self._normed(x, layer.input_norm), (cos, sin), plan, kv)
            x = x + _mlp(layer, self._normed(x, layer.post_norm))
        return self.transfer.down(self._logits(x, plan.logits))

    def draw(
        self,
        rows: Sequence[ForwardRow],
        kv: PagedKV,
        asks: Sequence[Ask | None],
        vocab_size: int,
        stop: StopWord | None = None,
    ) -> tuple[list[DraftStep], Tensor | None]:
        """A pass as `forward` makes it, and a draw among the first `vocab_size` tokens per wanted token.

        Logits are returned only where an ask is None, and then all of them. Only where `can_draw`.
        Raises Interrupted.
        """
        assert self._native is not None
        return self._native.draw(rows, kv, asks, vocab_size, stop)

    def build(self, build: Build, kv: PagedKV, vocab_size: int) -> list[tuple[int, float]]:
        """Let all lines of `build` grow in one call, drawing among the first `vocab_size` tokens.

        Fills in what each row and line reached. Returns the tokens fed and the seconds of each step. Only
        where `can_draw`.
        """
        assert self._native is not None
        return self._native.build(build, kv, vocab_size)

    def _matrices(self) -> list[WeightMatrix]:
        inner = [m for layer in self.layers for m in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [self.head, *inner]

    def _native_pass(self) -> NativePass | None:
        return NativePass(self) if is_native(self._matrices()) else None

    def _logits(self, x: Tensor, wanted: Tensor) -> Tensor:
        if not len(wanted):
            return x.new_empty(0, self.config.vocab_size)
        return self.head(self._normed(x.index_select(0, wanted), self.norm))

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), weight, self.config.rms_eps)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos `[N, 1, D]` and sin `[N, 1, D / 2]`, scaled."""
        angles = positions.float()[:, None] * self.frequencies
        cos = (angles.cos() * self.rope_factor).repeat(1, 2)
        return cos[:, None], (angles.sin() * self.rope_factor)[:, None]

    def _attention(
        self,
        index: int,
        layer: DecoderLayer,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        plan: Plan,
        kv: PagedKV,
    ) -> Tensor:
        config = self.config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = _affine(layer.qkv, x, layer.qkv_bias).view(len(x), heads + 2 * kv_heads, config.head_dim)
        qk, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
        if layer.qk_norm is not None:
            qk = functional.rms_norm(qk, (config.head_dim,), None, config.rms_eps) * layer.qk_norm
        qk = _rotate(qk, *rotation)
        kv.write(index, plan.entries, torch.stack(_contained(qk[:, heads:], value), 2))
        queries = qk[:, :heads].reshape(-1, config.head_dim)
        mixed = attend(queries, index, plan, kv, layer.window)
        return _affine(layer.output, mixed.view(len(x), -1), layer.output_bias)


def _affine(matrix: WeightMatrix, x: Tensor, bias: Tensor | None) -> Tensor:
    product = matrix(x)
    return product if bias is None else product + bias


def _mlp(layer: DecoderLayer, x: Tensor) -> Tensor:
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

"""Tiny models with random weights: everything a real model does, in microseconds.

For the tests of this project and for those of plugins; needs no files and no network.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ssd_kernels.cpu.library import VARIABLE, library_folder
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer, Quantizer
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.types import Message


class ToyTokenizer:
    """One token per character: id 0 is the end, id i the character `chr(31 + i)`.

    Characters outside the vocabulary become `?`. A conversation is the names of its tools and the contents
    and calls of its turns, joined by newlines' stand-in `|`.
    """

    has_chat_template = True
    byte_ids: frozenset[int] = frozenset()
    pieces: Mapping[int, bytes] | None = None
    template_words = frozenset({"tools", "tool_calls", "name"})

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.eos_token_ids: tuple[int, ...] = (0,)
        self.special_ids = frozenset({0})

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer.encode`."""
        return [self._id(char) for char in text]

    def render_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        for_answer: bool = True,
    ) -> list[int]:
        """See `Tokenizer.render_chat`."""
        names = [tool["function"]["name"] for tool in tools]
        turns = [
            message.content + "".join(call["function"]["name"] for call in message.tool_calls)
            for message in messages
        ]
        return self.encode("|".join([*names, *turns]) + "|" * for_answer)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `Tokenizer.decode`."""
        return "".join(chr(31 + token) for token in token_ids if token)

    def tokens(self) -> list[str]:
        """See `Tokenizer.tokens`."""
        return [chr(31 + token) for token in range(self.vocab_size)]

    def spellings(self) -> list[bytes]:
        """See `Tokenizer.spellings`."""
        return [token.encode() for token in self.tokens()]

    def _id(self, char: str) -> int:
        token = ord(char) - 31
        return token if 0 < token < self.vocab_size else ord("?") - 31


def toy_config(vocab: int = 64, layers: int = 2, max_position: int = 512) -> DecoderConfig:
    """A small decoder with grouped heads and a tied head."""
    return DecoderConfig(
        vocab_size=vocab,
        hidden=32,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=8,
        intermediate=64,
        max_position=max_position,
        tie_embeddings=True,
        eos_token_ids=(0,),
    )


def toy_weights(config: DecoderConfig, seed: int, scale: float = 0.3) -> dict[str, Tensor]:
    """Random float32 weights for `config`; the larger `scale`, the more decided the logits."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _weight(name, shape, generator, scale) for name, shape in weight_shapes(config).items()}


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Every weight that a decoder of this configuration has, under Hugging Face's names."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden),
        "model.norm.weight": (config.hidden,),
    }
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden)
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": size for name, size in _layer_shapes(config).items()}
    return shapes


def toy_decoder(
    seed: int,
    vocab: int = 64,
    layers: int = 2,
    max_position: int = 512,
    scale: float = 0.3,
    quantizer: Quantizer | None = None,
) -> LoadedModel:
    """A whole toy model. Two toys of different seeds disagree; equal seeds give equal models."""
    config = toy_config(vocab, layers, max_position)
    decoder = Decoder(config, toy_weights(config, seed, scale), quantizer or Float32Quantizer())
    return LoadedModel(config, decoder, ToyTokenizer(vocab), f"toy-{seed}")


@contextmanager
def cpu_kernels(name: str) -> Iterator[None]:
    """Decoders made within run on the native library for the instruction set `name`, or on `torch`."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(library_folder() / name)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.intermediate
    query, key = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = {
        "self_attn.q_proj": (query, hidden),
        "self_attn.k_proj": (key, hidden),
        "self_attn.v_proj": (key, hidden),
        "self_attn.o_proj": (hidden, query),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": size for name, size in matrices.items()}
    biased = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] if config.qkv_bias else []
    biased += ["self_attn.o_proj"] if config.output_bias else []
    biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if config.mlp_bias else []
    shapes |= {f"{name}.bias": matrices[name][:1] for name in biased}
    norms = ("self_attn.q_norm.weight", "self_attn.k_norm.weight") if config.qk_norm else ()
    shapes |= dict.fromkeys(norms, (config.head_dim,))
    return shapes | {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _weight(name: str, shape: tuple[int, ...], generator: torch.Generator, scale: float) -> Tensor:
    noise = torch.randn(shape, generator=generator)
    return 1 + 0.1 * noise if "norm" in name else scale * noise

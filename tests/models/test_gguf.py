"""GGUF files: every type that the package reads, names, shapes, and files that are not whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter

from ssd_runtime.errors import ModelError
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.gguf import GGUFFile
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.testing.toy import toy_weights

QUANTISED = sorted(gguf.quants._type_traits, key=lambda kind: kind.value)
PLAIN = [GGMLQuantizationType.F32, GGMLQuantizationType.F16]
VOCAB, HIDDEN = 16, 256

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def _writer(path: Path, arch: str = "llama") -> GGUFWriter:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_eos_token_id(2)
    return writer


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _permute(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's own reordering, from its conversion script."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem in _GLOBAL:
        return f"{_GLOBAL[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{_LAYER[part]}.{kind}"


@pytest.mark.parametrize("kind", [*PLAIN, *QUANTISED], ids=lambda kind: kind.name)
def test_every_type_is_read_as_the_package_dequantises_it(tmp_path: Path, kind: GGMLQuantizationType) -> None:
    """Random blocks of each type come out as gguf.dequantize gives them."""
    block, size = GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(kind.value).integers(0, 256, (VOCAB, HIDDEN // block * size), dtype=np.uint8)
    if kind in PLAIN:
        dtype = np.float32 if kind is GGMLQuantizationType.F32 else np.float16
        raw = np.random.default_rng(1).normal(size=(VOCAB, HIDDEN)).astype(dtype)
    writer = _writer(tmp_path / "a.gguf")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=kind)
    _finish(writer)
    file = GGUFFile(tmp_path / "a.gguf")
    ((name, weight),) = file.weights(file.config())
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(raw, kind).astype(np.float32)
    assert name == "model.embed_tokens.weight"
    assert weight.shape == (VOCAB, HIDDEN)
    np.testing.assert_array_equal(weight.numpy(), expected)


@pytest.mark.parametrize(
    ("arch", "tied", "bias"), [("llama", True, False), ("qwen2", False, True), ("qwen3", True, False)]
)
def test_a_whole_file_gives_back_configuration_and_weights(
    tmp_path: Path, arch: str, tied: bool, bias: bool
) -> None:
    """Names are translated, llama's query and key rows are put back in order, and a decoder fits."""
    first = _writer(tmp_path / "shape.gguf", arch)
    first.add_tensor("token_embd.weight", np.zeros((VOCAB, HIDDEN), np.float32))
    if not tied:
        first.add_tensor("output.weight", np.zeros((VOCAB, HIDDEN), np.float32))
    if bias:
        first.add_tensor("blk.0.attn_q.bias", np.zeros(HIDDEN, np.float32))
    _finish(first)
    config = GGUFFile(tmp_path / "shape.gguf").config()
    assert (config.tie_embeddings, config.qkv_bias, config.qk_norm) == (tied, bias, arch == "qwen3")
    assert (config.rope_theta, config.max_position, config.eos_token_ids) == (5000.0, 64, (2,))

    weights = toy_weights(config, seed=3)
    writer = _writer(tmp_path / "a.gguf", arch)
    for name, weight in weights.items():
        values = weight.numpy()
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2]) if arch == "llama" else None
        writer.add_tensor(_gguf_name(name), _permute(values, heads) if heads else values)
    _finish(writer)
    file = GGUFFile(tmp_path / "a.gguf")
    read = dict(file.weights(file.config()))
    assert file.num_weights == len(weights)
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weights[name]) for name in weights)
    Decoder(file.config(), read, Float32Quantizer())


def test_stretched_frequencies_are_read(tmp_path: Path) -> None:
    """The divisors that llama.cpp stores for Llama 3 become part of the configuration."""
    writer = _writer(tmp_path / "a.gguf")
    writer.add_tensor("token_embd.weight", np.zeros((VOCAB, HIDDEN), np.float32))
    writer.add_tensor("rope_freqs.weight", np.linspace(1, 8, HIDDEN // 8, dtype=np.float32))
    _finish(writer)
    divisors = GGUFFile(tmp_path / "a.gguf").config().rope.frequency_divisors
    assert divisors is not None
    np.testing.assert_allclose(divisors, np.linspace(1, 8, HIDDEN // 8), rtol=1e-6)


def _small(path: Path) -> bytes:
    writer = _writer(path)
    writer.add_tensor("output_norm.weight", np.ones(HIDDEN, np.float32))
    writer.add_tensor("token_embd.weight", np.ones((VOCAB, HIDDEN), np.float32))
    _finish(writer)
    return path.read_bytes()


@pytest.mark.parametrize("missing", [1, 1000, 17000])
def test_a_truncated_file_names_the_missing_bytes(tmp_path: Path, missing: int) -> None:
    """A download cut short says how much is not there."""
    path = tmp_path / "a.gguf"
    whole = _small(path)
    path.write_bytes(whole[:-missing])
    with pytest.raises(
        ModelError, match=rf"truncated: tensor 'token_embd\.weight'.*{missing} bytes are missing"
    ):
        GGUFFile(path)


@pytest.mark.parametrize("kept", [4, 5, 8, 20, 30, 100, 333])
def test_a_file_cut_inside_its_header_is_refused(tmp_path: Path, kept: int) -> None:
    """Wherever the header ends early, the error is ours and names the file."""
    path = tmp_path / "a.gguf"
    path.write_bytes(_small(path)[:kept])
    with pytest.raises(ModelError, match=r"a\.gguf: .*"):
        GGUFFile(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"hello world", b"PK\x03\x04" * 9, b"GGUF" + b"\xff" * 64])
def test_what_is_not_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    """Other files are named as such, whatever they hold."""
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"a\.gguf: (not a|the file is truncated)"):
        GGUFFile(path)


def test_other_architectures_and_tensors_are_refused_by_name(tmp_path: Path) -> None:
    """Nothing is dropped in silence."""
    writer = _writer(tmp_path / "a.gguf", "gptneox")
    writer.add_tensor("token_embd.weight", np.ones((VOCAB, HIDDEN), np.float32))
    _finish(writer)
    with pytest.raises(ModelError, match="'gptneox' is not supported"):
        GGUFFile(tmp_path / "a.gguf").config()
    writer = _writer(tmp_path / "b.gguf")
    writer.add_tensor("token_embd.weight", np.ones((VOCAB, HIDDEN), np.float32))
    writer.add_tensor("blk.0.ssm_a.weight", np.ones(HIDDEN, np.float32))
    _finish(writer)
    file = GGUFFile(tmp_path / "b.gguf")
    with pytest.raises(ModelError, match=r"'blk\.0\.ssm_a\.weight' belongs to no architecture"):
        list(file.weights(file.config()))

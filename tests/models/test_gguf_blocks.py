"""A GGUF's own blocks as weights: not one value differs from the file's, whatever is joined or reordered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from torch import Tensor

from ssd_kernels.cpu.coded import CodedWeight, joined
from ssd_kernels.cpu.library import native_library
from ssd_kernels.cpu.matrix import Format, NativeMatrix, pack_native_codes
from ssd_plugins.quantizers import Int4Quantizer, Int8Quantizer
from ssd_runtime.models.convert import converted, default_cache_dir, stored_weights
from ssd_runtime.models.gguf_blocks import TYPES, decoded
from ssd_runtime.models.linear import PlainMatrix, Quantizer, WeightMatrix
from ssd_runtime.models.loading import EMBEDDED, LoadedModel, ModelSource, SourceKind, load, resolve
from ssd_runtime.models.safetensors import SafetensorsFolder
from ssd_runtime.models.selfcheck import WHOLE_ROWS

pytestmark = pytest.mark.skipif(native_library() is None, reason="there is no native library")

FACTORS = {"Q4_0": (0, 2), "Q4_1": (0, 4), "Q8_0": (0, 2), "Q4_K": (0, 4), "Q6_K": (208, 210)}
"""The bytes of a block that are float16 numbers; any bytes are codes."""
FORMATS = {
    "Q4_0": Format.INT4,
    "Q4_1": Format.INT4,
    "Q8_0": Format.INT8,
    "Q4_K": Format.INT4_WIDE,
    "Q6_K": Format.INT8_FINE,
}
HIDDEN, LAYER = 256, "model.layers.0"
MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
each_type = pytest.mark.parametrize("kind", TYPES)


def random_blocks(kind: str, out: int, blocks: int, seed: int = 0) -> NDArray[np.uint8]:
    """Every byte random but those of the factors, which are numbers of usual size."""
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (out, blocks, TYPES[kind].bytes), dtype=np.uint8)
    start, end = FACTORS[kind]
    factors = random.normal(0, 0.01, (out, blocks, (end - start) // 2)).astype(np.float16)
    raw[..., start:end] = factors.view(np.uint8)
    return raw.reshape(out, -1)


def dequantized(kind: str, raw: NDArray[np.uint8]) -> Tensor:
    """What the package gguf makes of the blocks."""
    return torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType[kind]).astype(np.float32))


def packed(weight: CodedWeight) -> NativeMatrix:
    """The weight in native panels."""
    matrix = pack_native_codes(weight)
    assert matrix is not None
    return matrix


@each_type
def test_values_and_products_are_those_of_the_file(kind: str) -> None:
    """Every value to the last bit; and no product is further off than the rounding of its inputs."""
    raw = random_blocks(kind, 70, 3)
    weight = dequantized(kind, raw)
    matrix = packed(decoded(kind, raw))
    assert matrix.kind is FORMATS[kind]
    assert torch.equal(matrix.dense(), weight)
    x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(1))
    exact = x.double() @ weight.double().t()
    assert (matrix(x) - exact).norm() / exact.norm() < 0.012
    assert all(torch.equal(matrix(x[i : i + 1]), matrix(x)[i : i + 1]) for i in range(5))


@each_type
@pytest.mark.parametrize("factor", [2.0**-24, 65504.0, -12345.0], ids=["subnormal", "largest", "negative"])
def test_scales_of_any_size_are_kept(kind: str, factor: float) -> None:
    """Where a scale or a minimum does not fit into float16, it gets more room."""
    raw = random_blocks(kind, 5, 2).reshape(5, 2, -1)
    start, end = FACTORS[kind]
    raw[..., start:end] = np.full((5, 2, (end - start) // 2), factor, np.float16).view(np.uint8)
    rows = raw.reshape(5, -1)
    matrix = pack_native_codes(decoded(kind, rows))
    assert matrix is not None
    assert torch.equal(matrix.dense(), dequantized(kind, rows))


def test_only_codes_of_one_kind_are_joined() -> None:
    """Four bits with others of four bits, whatever their blocks were; nothing else."""
    weights = {kind: decoded(kind, random_blocks(kind, 8, 256 // TYPES[kind].inputs)) for kind in TYPES}
    both = joined([weights["Q4_0"], weights["Q4_1"], weights["Q4_K"]])
    assert both is not None
    expected = torch.cat([packed(weights[kind]).dense() for kind in ("Q4_0", "Q4_1", "Q4_K")])
    assert torch.equal(packed(both).dense(), expected)
    assert joined([weights["Q8_0"], weights["Q6_K"]]) is None
    assert joined([weights["Q4_0"], weights["Q8_0"]]) is None


@each_type
def test_a_quantizer_keeps_codes_of_no_more_bits_than_it_would_make(kind: str) -> None:
    """int8 keeps all; int4 those of 4 bits, and a vocabulary's whatever they are."""
    weight = decoded(kind, random_blocks(kind, 64, 1))
    vocabulary = decoded(kind, random_blocks(kind, 7 * 256 + 1, 256 // TYPES[kind].inputs))
    assert Int8Quantizer().pack_codes(weight) is not None
    assert (Int4Quantizer().pack_codes(weight) is not None) == (weight.bits == 4)
    assert Int4Quantizer().pack_codes(vocabulary) is not None


def write_model(path: Path, kinds: Mapping[str, str], spoilt: str = "") -> None:
    """A toy model of one layer; `kinds`: the block type of each matrix, float32 where there is none.

    spoilt: the matrix whose first scale is NaN.
    """
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(64)])
    writer.add_token_scores([0.0] * 64)
    writer.add_token_types([1] * 64)
    writer.add_eos_token_id(3)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    for seed, name in enumerate(("token_embd", *MATRICES)):
        out = 64 if name == "token_embd" else HIDDEN // (2 if name in ("attn_k", "attn_v") else 1)
        tensor = f"blk.0.{name}.weight" if name in MATRICES else f"{name}.weight"
        kind = kinds.get(name)
        if kind is None:
            noise = np.random.default_rng(seed).normal(0, 0.05, (out, HIDDEN)).astype(np.float32)
            writer.add_tensor(tensor, noise)
            continue
        raw = random_blocks(kind, out, HIDDEN // TYPES[kind].inputs, seed)
        if name == spoilt:
            start = FACTORS[kind][0]
            raw[0, start : start + 2] = np.array([np.nan], np.float16).view(np.uint8)
        writer.add_tensor(tensor, raw, raw_dtype=GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def loaded(path: Path, quantizer: Quantizer) -> LoadedModel:
    """The model in the file, its cache beside it."""
    source = ModelSource(path.name, SourceKind.GGUF, path)
    return load(source, quantizer, progress=lambda *_: None, cache_dir=path.parent / "cache")


def file_values(path: Path, cache: Path) -> dict[str, Tensor]:
    """Each matrix of the first layer as the decoder joins them, dequantised by the package gguf."""
    weights = SafetensorsFolder(converted(path, cache, lambda *_: None))

    def below(*names: str) -> Tensor:
        return torch.cat([weights[f"{LAYER}.{name}.weight"] for name in names])

    return {
        "qkv": below("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": below("self_attn.o_proj"),
        "gate_up": below("mlp.gate_proj", "mlp.up_proj"),
        "down": below("mlp.down_proj"),
    }


def dense(model: LoadedModel, name: str) -> Tensor:
    """The values that products with a matrix of the first layer use."""
    matrix: Any = getattr(model.decoder.layers[0], name)
    values: Tensor = matrix.dense()
    return values


@each_type
def test_a_model_of_such_blocks_is_used_as_stored(tmp_path: Path, kind: str) -> None:
    """llama's reordered query and key rows and joined projections too; embedding and head as well."""
    path = tmp_path / "a.gguf"
    write_model(path, dict.fromkeys(("token_embd", *MATRICES), kind))
    model = loaded(path, Int8Quantizer())
    for name, values in file_values(path, tmp_path / "cache").items():
        assert torch.equal(dense(model, name), values), name
    head: Any = model.decoder.head
    assert torch.equal(head.dense(), model.decoder.embedding)
    assert model.row_policy == WHOLE_ROWS


def test_what_cannot_be_used_as_stored_is_rounded_anew(tmp_path: Path) -> None:
    """Projections of several kinds, float32, a scale that is NaN; beside them the others stay exact."""
    kinds = dict.fromkeys(MATRICES, "Q4_K") | {"attn_v": "Q6_K", "attn_output": "Q8_0"}
    del kinds["ffn_up"]
    path = tmp_path / "a.gguf"
    write_model(path, kinds)
    model, values = loaded(path, Int8Quantizer()), file_values(path, tmp_path / "cache")
    assert torch.equal(dense(model, "down"), values["down"])
    assert torch.equal(dense(model, "output"), values["output"])
    for name in ("qkv", "gate_up"):
        again: Any = Int8Quantizer().pack(values[name])
        assert torch.equal(dense(model, name), again.dense()), name


def test_a_scale_that_is_no_number_is_not_used(tmp_path: Path) -> None:
    """The weight is quantized from its values, as without blocks."""
    path = tmp_path / "a.gguf"
    write_model(path, {"ffn_down": "Q8_0", "attn_output": "Q8_0"}, spoilt="ffn_down")
    folder = converted(path, tmp_path / "cache", lambda *_: None)
    stored = stored_weights(folder, path)
    assert not stored[f"{LAYER}.mlp.down_proj.weight"].is_finite
    assert stored[f"{LAYER}.self_attn.o_proj.weight"].is_finite
    seen: list[CodedWeight] = []

    class Watching(Int8Quantizer):
        def pack_codes(self, weight: CodedWeight) -> WeightMatrix | None:
            """Note the weight, and take its values instead."""
            seen.append(weight)
            return None

    loaded(path, Watching())
    assert len(seen) == 1


def test_a_quantizer_that_knows_no_codes_is_given_the_values(tmp_path: Path) -> None:
    """The protocol for plugins is one method, and what it gets is the file's float32."""
    packed_weights: list[Tensor] = []

    class Plain:
        name = "plain"

        def pack(self, weight: Tensor) -> WeightMatrix:
            """Keep the weight."""
            packed_weights.append(weight.clone())
            return PlainMatrix(weight)

    path = tmp_path / "a.gguf"
    write_model(path, dict.fromkeys(MATRICES, "Q4_1"))
    loaded(path, Plain())
    values = file_values(path, tmp_path / "cache")
    assert any(torch.equal(weight, values["down"]) for weight in packed_weights)
    assert len(packed_weights) == 5


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("quantizer", [Int4Quantizer(), Int8Quantizer()], ids=["int4", "int8"])
def test_the_embedded_model_is_used_as_stored(quantizer: Quantizer) -> None:
    """Its Q4_1 layers and its Q8_0 embedding, exactly, in less than 100 MB."""
    source = resolve(EMBEDDED)
    model = load(source, quantizer, progress=lambda *_: None)
    assert source.path is not None
    for name, values in file_values(source.path, default_cache_dir()).items():
        assert torch.equal(dense(model, name), values), name
    head: Any = model.decoder.head
    assert torch.equal(head.dense(), model.decoder.embedding)
    assert model.decoder.weight_bytes < 100e6

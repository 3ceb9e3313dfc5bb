"""A native pass computes what PyTorch's computes, for everything that a configuration can say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_kernels.cpu.matrix import Format, NativeMatrix, pack_native
from ssd_plugins.quantizers import Int4Quantizer, Int8Quantizer
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.config import DecoderConfig, RopeScaling
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer, Quantizer, WeightMatrix
from ssd_runtime.testing.toy import cpu_kernels, toy_weights

TOKENS = [(7 * at + 3) % 53 for at in range(70)]
CHUNKS = (31, 1, 6, 32)
PLAIN = DecoderConfig(
    vocab_size=53,
    hidden=36,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=10,
    intermediate=44,
    max_position=256,
    eos_token_ids=(0,),
)
YARN = RopeScaling("yarn", 4.0, 32)
VARIANTS = {
    "plain": PLAIN,
    "tied head": replace(PLAIN, tie_embeddings=True),
    "qkv bias": replace(PLAIN, qkv_bias=True),
    "output bias": replace(PLAIN, output_bias=True),
    "mlp bias": replace(PLAIN, mlp_bias=True),
    "qk norm": replace(PLAIN, qk_norm=True),
    "everything": replace(PLAIN, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True),
    "windows": replace(PLAIN, windows=(None, 9)),
    "a window of one": replace(PLAIN, windows=(1, 70)),
    "linear": replace(PLAIN, rope=RopeScaling("linear", 4.0)),
    "llama3": replace(PLAIN, rope=RopeScaling("llama3", 8.0, 32)),
    "yarn": replace(PLAIN, rope=YARN),
    "yarn, attention": replace(PLAIN, rope=replace(YARN, attention_factor=0.7, truncate=False)),
    "divisors": replace(PLAIN, rope=RopeScaling(frequency_divisors=(1.0, 1.5, 2.0, 4.0, 8.0))),
    "eps and theta": replace(PLAIN, rms_eps=1e-2, rope_theta=500.0),
    "panels exactly": replace(PLAIN, hidden=96, intermediate=96, vocab_size=96, head_dim=16),
    "one of each": replace(PLAIN, hidden=1, layers=1, heads=1, kv_heads=1, head_dim=2, intermediate=1),
}

sharing_fixtures = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", autouse=True)
def one_torch_thread() -> Iterator[None]:
    """Products this small are only slowed down by more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made(kernels: str, config: DecoderConfig, quantizer: Quantizer | None = None) -> Decoder:
    """The toy of this configuration on a library, or on `torch`."""
    weights = toy_weights(config, seed=3, scale=1 / config.hidden**0.5)
    with cpu_kernels(kernels):
        return Decoder(config, weights, quantizer or Float32Quantizer())


def fed(
    decoder: Decoder,
    chunks: Sequence[int] = CHUNKS,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Logits of all tokens, fed in chunks into blocks that lie backwards."""
    blocks = -(-sum(chunks) // block_size)
    kv = decoder.new_kv(blocks + 1, block_size, dtype)
    parts, start = [], 0
    for chunk in chunks:
        ids = [token % decoder.config.vocab_size for token in TOKENS[start : start + chunk]]
        parts.append(decoder.forward([ForwardRow(ids, start, range(blocks, 0, -1), chunk)], kv))
        start += chunk
    return torch.cat(parts)


@cache
def reference(config: DecoderConfig, chunks: tuple[int, ...], block_size: int, dtype: torch.dtype) -> Tensor:
    """What PyTorch says; the same for every library."""
    return fed(made("torch", config), chunks, block_size, dtype)


def assert_as_pytorch(isa: str, config: DecoderConfig, dtype: torch.dtype = torch.float32) -> None:
    """Within 2e-5 of the largest logit; with KV in float16 a number may fall to either side of a border."""
    part = 2e-5 if dtype is torch.float32 else 1e-3
    assert_close(fed(made(isa, config), dtype=dtype), reference(config, CHUNKS, 16, dtype), part)


def assert_close(logits: Tensor, expected: Tensor, part: float = 2e-5) -> None:
    """Within `part` of the largest logit, or of 1, about which logits of toys are spread."""
    assert logits.shape == expected.shape
    torch.testing.assert_close(logits, expected, rtol=0, atol=part * max(1.0, float(expected.abs().max())))


@pytest.mark.parametrize("name", VARIANTS)
def test_logits_are_those_of_pytorch(isa: str, name: str) -> None:
    """Biases, norms, windows, rotations, sizes: within 2e-5 of the largest logit."""
    assert made(isa, VARIANTS[name]).can_draw
    assert_as_pytorch(isa, VARIANTS[name])


@pytest.mark.parametrize("shared", range(1, 9))
@pytest.mark.parametrize("kv_heads", [1, 3])
def test_any_number_of_heads_shares_keys(isa: str, shared: int, kv_heads: int) -> None:
    """One to eight query heads per key head."""
    assert_as_pytorch(isa, replace(PLAIN, heads=shared * kv_heads, kv_heads=kv_heads))


@pytest.mark.parametrize("head_dim", [2, 6, 8, 16, 18, 34, 64, 80, 96, 128, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "fp16"])
def test_heads_of_any_width_attend(isa: str, head_dim: int, dtype: torch.dtype) -> None:
    """Widths that are no multiple of a vector, or of what is summed at once, in both stores of KV."""
    assert_as_pytorch(isa, replace(PLAIN, head_dim=head_dim, heads=3, kv_heads=1), dtype)


@pytest.mark.parametrize("block_size", [1, 3, 16, 64, 100])
def test_blocks_of_any_size_hold_the_same(isa: str, block_size: int) -> None:
    """The bits do not depend on where a block ends."""
    decoder = made(isa, replace(PLAIN, windows=(None, 9)))
    assert torch.equal(fed(decoder, block_size=block_size), fed(decoder, block_size=7))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_embeddings_stay_in_their_own_format(isa: str, dtype: torch.dtype, tied: bool) -> None:
    """They are read as the file has them, subnormal float16 included, and become float32 exactly."""
    config = replace(PLAIN, tie_embeddings=tied)
    weights = toy_weights(config, seed=3, scale=0.2)
    weights["model.embed_tokens.weight"][5] *= 1e-5
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].to(dtype)
    decoders = []
    for kernels in (isa, "torch"):
        with cpu_kernels(kernels):
            decoders.append(Decoder(config, weights, Float32Quantizer()))
    assert decoders[0].embedding.dtype == dtype
    assert_close(fed(decoders[0]), fed(decoders[1]))


configurations = st.builds(
    lambda shared, kv_heads, half_dim, **rest: DecoderConfig(
        layers=2, max_position=256, heads=shared * kv_heads, kv_heads=kv_heads, head_dim=2 * half_dim, **rest
    ),
    shared=st.integers(1, 8),
    kv_heads=st.integers(1, 3),
    half_dim=st.integers(1, 40),
    vocab_size=st.integers(1, 150),
    hidden=st.integers(1, 100),
    intermediate=st.integers(1, 130),
    tie_embeddings=st.booleans(),
    qkv_bias=st.booleans(),
    output_bias=st.booleans(),
    mlp_bias=st.booleans(),
    qk_norm=st.booleans(),
    windows=st.sampled_from([(), (None, 5), (17, None), (3, 64)]),
    rope=st.sampled_from([RopeScaling(), YARN, RopeScaling("llama3", 8.0, 32)]),
)


@sharing_fixtures
@given(config=configurations, block_size=st.integers(1, 40), cut=st.integers(1, 69))
def test_no_combination_differs(isa: str, config: DecoderConfig, block_size: int, cut: int) -> None:
    """Whatever is combined: within 5e-5 of the largest logit of the reference."""
    chunks = (cut, 70 - cut)
    expected = reference(config, chunks, block_size, torch.float32)
    assert_close(fed(made(isa, config), chunks, block_size), expected, 5e-5)


class Rounded:
    """The reference of a format: the weights as packed, the inputs as products round them, in double."""

    name = "rounded"

    def __init__(self, isa: str, quantizer: Quantizer) -> None:
        self._isa, self._quantizer = isa, quantizer

    def pack(self, weight: Tensor) -> WeightMatrix:
        """See `Quantizer.pack`."""
        with cpu_kernels(self._isa):
            packed = self._quantizer.pack(weight)
        assert isinstance(packed, NativeMatrix)
        return _Rounded(packed.dense(), packed.kind)


class _Rounded:
    nbytes = 0

    def __init__(self, weight: Tensor, kind: Format) -> None:
        self._weight, self._codes = weight.double().t(), kind in (Format.INT8, Format.INT4)

    def __call__(self, x: Tensor) -> Tensor:
        """See `WeightMatrix`."""
        return ((_in_codes(x) if self._codes else x).double() @ self._weight).float()


def _in_codes(x: Tensor) -> Tensor:
    groups = torch.nn.functional.pad(x, (0, -x.shape[-1] % 32)).view(len(x), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(largest > 0, 127 / largest, 0.0)).round()
    return (codes * (largest / 127)).flatten(-2)[..., : x.shape[-1]]


class BFloat16:
    """bf16 in panels, whatever the plugin of that name does elsewhere."""

    name = "bf16"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """See `Quantizer.pack`."""
        packed = pack_native(weight, Format.BFLOAT16)
        assert packed is not None
        return packed


@pytest.mark.parametrize("quantizer", [BFloat16(), Int8Quantizer(), Int4Quantizer()], ids=lambda q: q.name)
@pytest.mark.parametrize("name", ["everything", "tied head", "windows", "panels exactly"])
def test_each_format_is_its_own_reference(isa: str, quantizer: Quantizer, name: str) -> None:
    """With weights and inputs rounded alike the passes agree, but for inputs on the border of two codes."""
    config = VARIANTS[name]
    native, expected = made(isa, config, quantizer), made("torch", config, Rounded(isa, quantizer))
    assert native.can_draw
    assert not expected.can_draw
    assert_close(fed(native), fed(expected), 2e-5 if quantizer.name == "bf16" else 0.02)

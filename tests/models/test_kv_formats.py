"""Keys and values in fewer bits: how close, how small, the same on both paths, each row by itself."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from ssd_kernels.cpu.library import native_library
from ssd_runtime.memory.entries import FLOATS, LARGEST, decode, encode, to_float16
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import BlockCopy, ForwardRow
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.testing.toy import toy_decoder

FORMATS = [torch.float32, torch.float16, torch.float8_e4m3fn, torch.int8]
CODES = [torch.float8_e4m3fn, torch.int8]
STEP = {torch.float8_e4m3fn: 1 / 16, torch.int8: 1 / 254}
"""The largest error, for fp8 relative to a number, for int8 to the vector's largest."""
TOKENS = [(11 * at + 5) % 64 for at in range(150)]
BLOCK, BLOCKS = 16, 30
FIRST, SECOND = tuple(range(10)), tuple(range(29, 19, -1))
PATHS = ("native", "whole rows", "tiles")


@pytest.fixture(params=PATHS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """A toy target on each path that a CPU has."""
    return made(request.param)


def made(path: str) -> Decoder:
    """A toy target; the paths of PyTorch are chosen as a GPU or an unruly library would."""
    if path == "native" and native_library() is None:
        pytest.skip("there is no native library")
    with pytest.MonkeyPatch.context() as patch:
        if path != "native":
            patch.setenv("SSD_CPU_KERNELS", "torch")
        decoder = toy_decoder(seed=1).decoder
    if path == "tiles":
        decoder.use_tiles()
    assert decoder.can_draw is (path == "native")
    return decoder


def feed(decoder: Decoder, kv: PagedKV, chunks: Sequence[int], table: Sequence[int] = FIRST) -> Tensor:
    """Logits of all tokens, fed chunk by chunk."""
    parts, start = [], 0
    for chunk in chunks:
        parts.append(decoder.forward([ForwardRow(TOKENS[start : start + chunk], start, table, chunk)], kv))
        start += chunk
    return torch.cat(parts)


def vectors(seed: int, *shape: int) -> Tensor:
    """Keys and values of very different sizes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(-20, 20, (*shape[:-1], 1), generator=generator)
    return torch.randn(shape, generator=generator) * 2.0**sizes


@pytest.mark.parametrize("dtype", CODES)
def test_codes_are_close(dtype: torch.dtype) -> None:
    """No number is further off than half a step of its vector's scale."""
    exact = vectors(1, 200, 3, 2, 64)
    read = decode(encode(exact, dtype).flatten(0, 1), dtype).view(exact.shape)
    largest = exact.abs().amax(-1, keepdim=True)
    size = largest if dtype is torch.int8 else exact.abs().clamp_min(2**-6 * largest / LARGEST[dtype])
    assert ((read - exact).abs() <= 1.001 * STEP[dtype] * size).all()


@pytest.mark.parametrize("dtype", CODES)
def test_what_is_stored_together_does_not_matter(dtype: torch.dtype) -> None:
    """A vector's codes and scale are its own."""
    many = vectors(2, 50, 3, 2, 8)
    whole = encode(many, dtype)
    assert all(torch.equal(encode(many[i : i + 1], dtype), whole[i : i + 1]) for i in range(50))


@pytest.mark.parametrize("dtype", CODES)
@pytest.mark.parametrize("spoilt", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_vector(dtype: torch.dtype, spoilt: float) -> None:
    """The vector reads as NaN, its neighbours as ever; zeros stay zeros."""
    exact = vectors(3, 4, 2, 2, 8)
    exact[1, 0, 1, 5] = spoilt
    exact[3] = 0
    read = decode(encode(exact, dtype).flatten(0, 1), dtype).view(exact.shape)
    assert read[1, 0, 1].isnan().all()
    assert read[1, 0, 0].isfinite().all()
    assert read.isnan().sum() == 8
    assert torch.equal(read[3], torch.zeros_like(read[3]))


def test_float16_holds_what_is_too_large_and_keeps_nan() -> None:
    """The largest number instead of infinity; NaN for what is not finite."""
    stored = to_float16(torch.tensor([1e9, -1e9, 0.5, torch.inf, torch.nan]))
    assert stored[:3].tolist() == [65504.0, -65504.0, 0.5]
    assert stored[3:].isnan().all()


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_native_library_stores_the_same_bytes(dtype: torch.dtype) -> None:
    """Of the first layer, whose keys and values depend on no stored ones."""
    decoder = made("native")
    exact, stored = decoder.new_kv(BLOCKS, BLOCK), decoder.new_kv(BLOCKS, BLOCK, dtype)
    feed(decoder, exact, [150])
    feed(decoder, stored, [150])
    heads, dim = decoder.config.kv_heads, decoder.config.head_dim
    plain = exact.data[0].view(-1, 1, 2, dim)
    same = PagedKV(1, (BLOCKS + 1) * heads - 1, BLOCK, 1, dim, dtype)
    same.write(0, torch.arange(len(plain)), plain)
    assert torch.equal(same.data.view(torch.uint8).flatten(), stored.data[0].view(torch.uint8).flatten())


@pytest.mark.parametrize("dtype", FORMATS)
def test_all_paths_agree(dtype: torch.dtype) -> None:
    """A token that reads the same stored bytes has the same logits, but for the last digits."""
    kvs = {path: made(path).new_kv(BLOCKS, BLOCK, dtype) for path in PATHS}
    feed(made("native"), kvs["native"], [100])
    logits = []
    for path, kv in kvs.items():
        kv.data.copy_(kvs["native"].data)
        logits.append(made(path).forward([ForwardRow(TOKENS[100:101], 100, FIRST, 1)], kv))
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], atol=0.02 if dtype in CODES else 1e-3, rtol=0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_memory_is_what_the_format_promises(dtype: torch.dtype) -> None:
    """The numbers, and a float32 scale per token, head and kind for codes."""
    decoder = toy_decoder(seed=1).decoder
    kv = decoder.new_kv(BLOCKS, BLOCK, dtype)
    heads = decoder.config.layers * decoder.config.kv_heads
    scales = 8 * heads if dtype in CODES else 0
    assert kv.bytes_per_token == heads * 2 * decoder.config.head_dim * dtype.itemsize + scales
    assert kv.data.nbytes == (BLOCKS + 1) * BLOCK * kv.bytes_per_token


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("chunks", [(1, 7, 142), (100, 41, 9), (64, 64, 1, 1, 20), (149, 1)])
def test_chunks_neighbours_and_place_do_not_matter(
    decoder: Decoder, dtype: torch.dtype, chunks: Sequence[int]
) -> None:
    """Prefill in any chunks, elsewhere and in company gives the bits of prefill in one."""
    alone = feed(decoder, decoder.new_kv(BLOCKS, BLOCK, dtype), [150])
    kv = decoder.new_kv(BLOCKS, BLOCK, dtype)
    other = ForwardRow(TOKENS[50:61], 0, (10,), 2)
    start = 0
    for chunk in chunks:
        row = ForwardRow(TOKENS[start : start + chunk], start, SECOND, chunk)
        assert torch.equal(decoder.forward([other, row], kv)[2:], alone[start : start + chunk])
        start += chunk


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_text_hardly_changes(decoder: Decoder, dtype: torch.dtype) -> None:
    """Logits move a little."""
    alone = feed(decoder, decoder.new_kv(BLOCKS, BLOCK), [100])
    logits = feed(decoder, decoder.new_kv(BLOCKS, BLOCK, dtype), [100])
    assert (logits - alone).norm() / alone.norm() < (0.2 if dtype in CODES else 0.01)


@pytest.mark.parametrize("dtype", FORMATS)
def test_garbage_in_unused_slots_does_not_leak(decoder: Decoder, dtype: torch.dtype) -> None:
    """NaN in free blocks, and past a row's end in its own, changes nothing."""
    alone = feed(decoder, decoder.new_kv(BLOCKS, BLOCK, dtype), [108])
    kv = decoder.new_kv(BLOCKS, BLOCK, dtype)
    kv.data[:, :BLOCKS].fill_(torch.nan if dtype in FLOATS else 255)
    assert torch.equal(feed(decoder, kv, [100, 1, 7]), alone)


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_poisoned_row_spoils_only_itself(decoder: Decoder, dtype: torch.dtype) -> None:
    """A token whose embedding is NaN gives NaN to its row from there on, and to nobody else."""
    poison = 63
    decoder.embedding[poison] = torch.nan
    kv = decoder.new_kv(8, BLOCK, dtype)
    healthy = ForwardRow((1, 2, 3), 0, (0,), 3)
    expected = decoder.forward([healthy], decoder.new_kv(8, BLOCK, dtype))
    logits = decoder.forward([healthy, ForwardRow((1, 2, poison, 4), 0, (1,), 4)], kv)
    assert torch.equal(logits[:3], expected)
    assert torch.equal(logits[3:5], expected[:2]), "the tokens before the poison are fine"
    assert logits[5:].isnan().all()
    again = decoder.forward([ForwardRow((1, 2, 3), 0, (1,), 3)], kv)
    assert torch.equal(again, expected), "the block is clean for its next owner"


@pytest.mark.parametrize("dtype", FORMATS)
def test_copied_blocks_continue_like_the_original(decoder: Decoder, dtype: torch.dtype) -> None:
    """A fork that shares full blocks and copies the last one computes the same bits."""
    kv = decoder.new_kv(BLOCKS, BLOCK, dtype)
    feed(decoder, kv, [100])
    kv.copy([BlockCopy(source=FIRST[6], target=25, num_tokens=4)])
    rows = [ForwardRow(TOKENS[100:105], 100, table, 5) for table in ((*FIRST[:6], 25), FIRST)]
    fork, original = (decoder.forward([row], kv) for row in rows)
    assert torch.equal(fork, original)

"""What a lane keeps for its passes it takes before the first of them, and then no more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from ssd_runtime.messages import Draw, ForwardRow
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.native import Ask
from ssd_runtime.testing.toy import cpu_kernels, toy_weights

TOKENS, DRAWN = 256, 128
CONFIG = DecoderConfig(
    vocab_size=40_000,
    hidden=8,
    layers=1,
    heads=1,
    kv_heads=1,
    head_dim=8,
    intermediate=32_000,
    max_position=TOKENS,
    tie_embeddings=True,
)
"""Its passes want 120 MB, and all else is small."""
LITTLE = 2 * 2**20
"""Bytes that a process may take meanwhile for anything else."""


def made() -> Decoder:
    return Decoder(CONFIG, toy_weights(CONFIG, seed=1), Float32Quantizer())


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """A toy on the library that serves here."""
    decoder = made()
    if not decoder.can_draw:
        pytest.skip("no native library serves here")
    return decoder


def growth_in_the_first_pass(decoder: Decoder, reserved: tuple[int, int]) -> int:
    """Bytes that the largest pass takes from the system, on a thread that reserved room for such passes."""
    kv = decoder.new_kv(TOKENS // 16, 16)
    kv.data.zero_()
    rows = [ForwardRow(range(TOKENS), 0, range(TOKENS // 16), DRAWN)]
    asks = [Ask(Draw(seed=1, temperature=0.0), at + 1) for at in range(TOKENS - DRAWN, TOKENS)]
    with ThreadPoolExecutor(1) as thread:
        thread.submit(decoder.reserve, 1, 1).result()
        thread.submit(decoder.draw, [ForwardRow([1], 0, [0], 1)], kv, asks[:1], CONFIG.vocab_size).result()
        thread.submit(decoder.reserve, *reserved).result()
        before = psutil.Process().memory_info().rss
        thread.submit(decoder.draw, rows, kv, asks, CONFIG.vocab_size).result()
        return psutil.Process().memory_info().rss - before


def test_the_largest_pass_takes_no_memory_that_was_not_reserved(decoder: Decoder) -> None:
    """All that stays with the thread is there."""
    assert growth_in_the_first_pass(decoder, (TOKENS, DRAWN)) < LITTLE


def test_without_that_it_takes_all_of_it(decoder: Decoder) -> None:
    """What the test before measures is there to be measured."""
    assert growth_in_the_first_pass(decoder, (1, 1)) > 16 * LITTLE


def test_on_pytorch_there_is_nothing_to_reserve() -> None:
    """Nothing is kept from pass to pass, and it may be asked for all the same."""
    with cpu_kernels("torch"):
        made().reserve(TOKENS, DRAWN)

"""A token's logits are the same to the last bit, whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_plugins.quantizers import BFloat16Quantizer, Int4Quantizer, Int8Quantizer
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import BlockCopy, ForwardRow, Interrupted, StopWord
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer, PlainMatrix, Quantizer, WeightMatrix
from ssd_runtime.models.selfcheck import TILES, WHOLE_ROWS, check_rows, rows_agree
from ssd_runtime.testing.toy import toy_decoder

QUANTIZERS = [Float32Quantizer(), BFloat16Quantizer(), Int8Quantizer(), Int4Quantizer()]
TOKENS = [(11 * at + 5) % 64 for at in range(300)]
BLOCK = 16
FIRST, SECOND = tuple(range(20)), tuple(range(39, 19, -1))


def feed(decoder: Decoder, kv: PagedKV, chunks: Sequence[int], table: Sequence[int] = FIRST) -> Tensor:
    """Logits of all tokens, fed chunk by chunk."""
    parts, start = [], 0
    for chunk in chunks:
        parts.append(decoder.forward([ForwardRow(TOKENS[start : start + chunk], start, table, chunk)], kv))
        start += chunk
    return torch.cat(parts)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """A toy target."""
    return toy_decoder(seed=1).decoder


@pytest.fixture(scope="module")
def alone(decoder: Decoder) -> Tensor:
    """Logits of all `TOKENS` in one pass, nothing beside them."""
    return feed(decoder, decoder.new_kv(40, BLOCK), [300])


@settings(deadline=None, max_examples=15)
@given(cuts=st.sets(st.integers(1, 299), max_size=8))
def test_chunk_borders_do_not_matter(decoder: Decoder, alone: Tensor, cuts: set[int]) -> None:
    """Prefill in any chunks gives the bits of prefill in one."""
    edges = [0, *sorted(cuts), 300]
    chunks = [b - a for a, b in pairwise(edges)]
    assert torch.equal(feed(decoder, decoder.new_kv(40, BLOCK), chunks), alone)


def test_decoding_equals_verifying(decoder: Decoder, alone: Tensor) -> None:
    """One token at a time, K + 1 at a time, and all at once give the same bits."""
    singles = feed(decoder, decoder.new_kv(40, BLOCK), [100] + [1] * 40)
    fours = feed(decoder, decoder.new_kv(40, BLOCK), [100] + [4] * 10)
    assert torch.equal(singles, alone[:140])
    assert torch.equal(fours, alone[:140])


def test_neighbours_and_place_do_not_matter(decoder: Decoder, alone: Tensor) -> None:
    """Among decode, verify and prefill rows, first or last, a row has its own bits."""
    kv = decoder.new_kv(60, BLOCK)
    feed(decoder, kv, [130])
    feed(decoder, kv, [200], SECOND)
    other = [
        ForwardRow(TOKENS[200:201], 200, SECOND, 1),
        ForwardRow(TOKENS[:70], 0, range(40, 60), 2),
        ForwardRow(TOKENS[:1], 0, range(55, 56), 0),
    ]
    row = ForwardRow(TOKENS[130:135], 130, FIRST, 5)
    assert torch.equal(decoder.forward([row, *other], kv)[:5], alone[130:135])
    assert torch.equal(decoder.forward([*other, row], kv)[-5:], alone[130:135])


def test_number_of_threads_does_not_matter(decoder: Decoder, alone: Tensor) -> None:
    """The lanes may share out the cores as they like."""
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(feed(decoder, decoder.new_kv(40, BLOCK), [200, 1, 99]))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, alone) for result in results)


def test_garbage_in_unused_slots_does_not_leak(decoder: Decoder, alone: Tensor) -> None:
    """NaN in free blocks, and past a row's end in its own, changes nothing."""
    kv = decoder.new_kv(40, BLOCK)
    kv.data[:, :40].fill_(torch.nan)
    assert torch.equal(feed(decoder, kv, [100, 1, 7]), alone[:108])


def test_a_poisoned_row_spoils_only_itself() -> None:
    """A token whose embedding is NaN gives NaN to its row from there on, and to nobody else."""
    decoder = toy_decoder(seed=1).decoder
    poison = 63
    decoder.embedding[poison] = torch.nan
    kv = decoder.new_kv(8, BLOCK)
    healthy = ForwardRow((1, 2, 3), 0, (0,), 3)
    poisoned = ForwardRow((1, 2, poison, 4), 0, (1,), 4)
    expected = decoder.forward([healthy], decoder.new_kv(8, BLOCK))
    logits = decoder.forward([healthy, poisoned], kv)
    assert torch.equal(logits[:3], expected)
    assert torch.equal(logits[3:5], expected[:2]), "the tokens before the poison are fine"
    assert logits[5:].isnan().all()
    again = decoder.forward([ForwardRow((1, 2, 3), 0, (1,), 3)], kv)
    assert torch.equal(again, expected), "the block is clean for its next owner"


@pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.name)
@pytest.mark.parametrize("tiles", [False, True], ids=["whole", "tiles"])
def test_every_quantizer_and_policy_keeps_rows_apart(quantizer: Quantizer, tiles: bool) -> None:
    """The start-up check passes for all built-in quantizers, in whole rows and in tiles."""
    decoder = toy_decoder(seed=2, quantizer=quantizer).decoder
    if tiles:
        decoder.use_tiles()
    assert rows_agree(decoder)


class _Unruly:
    """A quantizer whose products depend on the number of rows, as some libraries' do."""

    name = "unruly"

    def pack(self, weight: Tensor) -> WeightMatrix:
        """A matrix that is off by a little unless it gets eight rows."""
        return _UnrulyMatrix(weight)


class _UnrulyMatrix(PlainMatrix):
    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x) * (1 + 1e-6 * abs(len(x) - 8))


def test_unruly_products_are_noticed_and_tamed() -> None:
    """The check finds rows that depend on their number, switches to tiles, and then they agree."""
    assert check_rows(toy_decoder(seed=1).decoder) == WHOLE_ROWS
    decoder = toy_decoder(seed=1, quantizer=_Unruly()).decoder
    assert not rows_agree(decoder)
    assert check_rows(decoder) == TILES
    assert rows_agree(decoder)


def test_copied_blocks_continue_like_the_original(decoder: Decoder, alone: Tensor) -> None:
    """A fork that shares full blocks and copies the last one computes the same bits."""
    kv = decoder.new_kv(40, BLOCK)
    feed(decoder, kv, [100])
    kv.copy([BlockCopy(source=FIRST[6], target=30, num_tokens=4)])
    fork = (*FIRST[:6], 30)
    assert torch.equal(decoder.forward([ForwardRow(TOKENS[100:105], 100, fork, 5)], kv), alone[100:105])


def test_a_set_stop_word_interrupts(decoder: Decoder, alone: Tensor) -> None:
    """The pass ends with Interrupted, and feeding the same tokens again is exact."""
    kv = decoder.new_kv(40, BLOCK)
    stop = StopWord()
    stop.set()
    with pytest.raises(Interrupted):
        decoder.forward([ForwardRow(TOKENS[:5], 0, FIRST, 5)], kv, stop)
    assert torch.equal(decoder.forward([ForwardRow(TOKENS[:5], 0, FIRST, 5)], kv, StopWord()), alone[:5])


def test_rows_without_logits_give_none(decoder: Decoder) -> None:
    """A prefill chunk that is not the last asks for no logits and gets an empty result."""
    logits = decoder.forward([ForwardRow(TOKENS[:5], 0, FIRST, 0)], decoder.new_kv(40, BLOCK))
    assert logits.shape == (0, 64)

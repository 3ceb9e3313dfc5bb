"""A row of a native pass is its own to the last bit, whatever is beside it, before it and left in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ssd_kernels.cpu.matrix import Format, use_threads
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow, Interrupted, StopWord
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.testing.panels import InPanels
from ssd_runtime.testing.toy import cpu_kernels, toy_weights

LENGTH, BLOCK = 512, 16
TOKENS = [(11 * at + 5) % 61 for at in range(LENGTH)]
EVERY_NUMBER = (*range(1, 21), 33, 64, 205)
"""Chunks of 1 … 20, 33 and 64 tokens, and the rest."""
SOME_NUMBERS = (1, 2, 9, 33, 467)
"""Where there are more threads than cores a pass takes a hundred times as long."""
FIRST, SECOND = tuple(range(32)), tuple(range(64, 32, -1))
CONFIG = DecoderConfig(
    vocab_size=61,
    hidden=36,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=10,
    intermediate=52,
    max_position=LENGTH,
    qkv_bias=True,
    mlp_bias=True,
    qk_norm=True,
    windows=(None, 100),
)
KV_TYPES = [torch.float32, torch.float16]


def made(isa: str, kind: Format, config: DecoderConfig = CONFIG) -> Decoder:
    with cpu_kernels(isa):
        return Decoder(config, toy_weights(config, seed=1, scale=0.2), InPanels(kind))


@pytest.fixture(scope="module", params=Format, ids=lambda kind: kind.name.lower())
def decoder(isa: str, request: pytest.FixtureRequest) -> Decoder:
    """A decoder of odd sizes in one format on one library."""
    return made(isa, request.param)


@pytest.fixture(scope="module")
def alone(decoder: Decoder) -> Tensor:
    """Logits of all `TOKENS` in one pass on one thread, nothing beside them."""
    use_threads(1)
    return fed(decoder, (LENGTH,))


@pytest.fixture(autouse=True)
def threads_are_put_back() -> Iterator[None]:
    """Other tests have one thread."""
    yield
    use_threads(1)


def fed(
    decoder: Decoder,
    chunks: Sequence[int],
    table: Sequence[int] = FIRST,
    kv: PagedKV | None = None,
    before: bool = False,
    after: bool = False,
) -> Tensor:
    """Logits of all tokens, chunk by chunk; with a chunk of another row before or behind each, or both."""
    kv = kv or decoder.new_kv(65, BLOCK)
    parts, start = [], 0
    for chunk in chunks:
        row = ForwardRow(TOKENS[start : start + chunk], start, table, chunk)
        rows = [*[other(start, 3)] * before, row, *[other(start, chunk % 7 + 1)] * after]
        logits = decoder.forward(rows, kv)
        skipped = 2 if before else 0
        parts.append(logits[skipped : skipped + chunk])
        start += chunk
    return torch.cat(parts)


def other(start: int, length: int) -> ForwardRow:
    """A few tokens in blocks of their own, two of them wanted."""
    at = start % 200
    return ForwardRow(TOKENS[at : at + length], at, range(40, 60), min(length, 2))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_number_of_tokens_in_a_pass_does_not_matter(
    decoder: Decoder, alone: Tensor, threads: int
) -> None:
    """1 … 20, 33, 64 or 205 tokens of a row at once, or all 512, on any number of threads."""
    use_threads(threads)
    assert torch.equal(fed(decoder, EVERY_NUMBER if threads < 3 else SOME_NUMBERS), alone)
    assert torch.equal(fed(decoder, (LENGTH,)), alone)


@pytest.mark.parametrize(("before", "after"), [(True, False), (False, True), (True, True)])
def test_company_does_not_matter(decoder: Decoder, alone: Tensor, before: bool, after: bool) -> None:
    """First, last or in the middle of a batch whose other rows have other lengths."""
    for threads, chunks in ((1, EVERY_NUMBER), (3, SOME_NUMBERS)):
        use_threads(threads)
        assert torch.equal(fed(decoder, chunks, before=before, after=after), alone)


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_the_place_in_memory_does_not_matter(decoder: Decoder, dtype: torch.dtype) -> None:
    """Blocks in another order, elsewhere; in every format of keys and values."""
    whole = fed(decoder, (LENGTH,), kv=decoder.new_kv(65, BLOCK, dtype))
    moved = fed(decoder, EVERY_NUMBER, SECOND, decoder.new_kv(65, BLOCK, dtype))
    assert torch.equal(moved, whole)


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
def test_what_lies_in_unused_memory_is_not_read(decoder: Decoder, dtype: torch.dtype) -> None:
    """NaN in every free slot, those behind a row's end and before its window included."""
    clean = fed(decoder, (100, 1, 7), kv=decoder.new_kv(65, BLOCK, dtype))
    kv = decoder.new_kv(65, BLOCK, dtype)
    kv.data[:, :65].fill_(torch.nan)
    assert torch.equal(fed(decoder, (100, 1, 7), kv=kv), clean)
    kv.data[1, :3].fill_(torch.nan)  # layer 1 looks back 100 positions: not as far as block 2
    row = ForwardRow(TOKENS[108:110], 148, FIRST, 2)
    gap = ForwardRow(TOKENS[108:148], 108, FIRST, 0)
    fresh = decoder.new_kv(65, BLOCK, dtype)
    fed(decoder, (100, 1, 7), kv=fresh)
    for store in (kv, fresh):
        decoder.forward([gap], store)
    assert torch.equal(decoder.forward([row], kv), decoder.forward([row], fresh))


@pytest.mark.parametrize("dtype", KV_TYPES, ids=str)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_poisoned_row_spoils_only_itself(
    isa: str, decoder: Decoder, dtype: torch.dtype, poison: float
) -> None:
    """From the poisoned token on nothing of its row is finite; other rows and later owners do not notice."""
    kind = decoder.head.kind  # type: ignore[attr-defined]
    spoilt = made(isa, kind)
    spoilt.embedding[60] = poison
    kv = spoilt.new_kv(8, BLOCK, dtype)
    healthy = ForwardRow((1, 2, 3), 0, (0,), 3)
    poisoned = ForwardRow((1, 2, 60, 4, 5), 0, (1,), 5)
    expected = decoder.forward([healthy], decoder.new_kv(8, BLOCK, dtype))
    logits = spoilt.forward([healthy, poisoned, ForwardRow((1, 2, 3), 0, (2,), 3)], kv)
    assert torch.equal(logits[:3], expected)
    assert torch.equal(logits[3:5], expected[:2]), "the tokens before the poison are fine"
    assert logits[5:8].isnan().all()
    assert torch.equal(logits[8:], expected)
    assert torch.equal(spoilt.forward([ForwardRow((1, 2, 3), 0, (1,), 3)], kv), expected)


def test_a_set_stop_word_interrupts(decoder: Decoder, alone: Tensor) -> None:
    """Before the first layer; feeding the same tokens again is exact."""
    kv, stop = decoder.new_kv(65, BLOCK), StopWord()
    stop.set()
    for threads in (1, 2):
        use_threads(threads)
        with pytest.raises(Interrupted):
            decoder.forward([ForwardRow(TOKENS[:5], 0, FIRST, 5)], kv, stop)
        with pytest.raises(Interrupted):
            decoder.draw([ForwardRow(TOKENS[:5], 0, FIRST, 1)], kv, [None], 61, stop)
    assert not kv.data.any(), "nothing was written"
    assert torch.equal(fed(decoder, (5,), kv=kv), alone[:5])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_running_pass_hears_the_stop_word(isa: str, threads: int) -> None:
    """Set once the first layer has written: the pass ends before the last one, and Python runs meanwhile."""
    layers = 60
    decoder = made(isa, Format.FLOAT32, replace(CONFIG, layers=layers, windows=()))
    kv, stop, interrupted = decoder.new_kv(32, BLOCK), StopWord(), threading.Event()

    def run() -> None:
        use_threads(threads)
        try:
            decoder.forward([ForwardRow(TOKENS, 0, FIRST, 1)], kv, stop)
        except Interrupted:
            interrupted.set()

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not kv.data[0, FIRST[0], 0, 0].any():
        pass
    stop.set()
    thread.join()
    assert interrupted.is_set()
    assert not kv.data[layers - 1].any()


def test_lanes_on_two_threads_do_not_share_memory(decoder: Decoder, alone: Tensor) -> None:
    """Two passes at the same time, each with helpers of its own."""
    results: dict[int, Tensor] = {}

    def run(number: int) -> None:
        use_threads(2)
        results[number] = fed(decoder, (300, 1, 1, 5, 205))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(result, alone) for result in results.values())
    assert len(results) == 2

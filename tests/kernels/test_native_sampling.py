"""The native draw is the Python draw: the same bits on every instruction set, whatever the row."""

from __future__ import annotations

from ctypes import CDLL, byref, c_float, c_int64, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_kernels.cpu.library import DrawOfRow
from ssd_kernels.gumbel import GUMBEL_MAX, SMALL_V_LIMIT, noise_of_words, vocabulary_words
from ssd_runtime.messages import Draw
from ssd_runtime.sampling.draw import UNUSABLE, DraftStep, draft_step, draw_token
from ssd_runtime.sampling.warp import masses

GREEDY = Draw(0, 0.0)
KNOWN_ANSWERS = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0],
     [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
]  # fmt: skip
DOCUMENTED_WORDS = {
    0x00000000: 0x41B6FDA9, 0x00000001: 0x41AE33B3, 0x4AFB0CCB: 0x3F87A2F1, 0x4AFB0CCC: 0x3F87A2F1,
    0x80000000: 0x3EBBA795, 0xFFFFFFFE: 0xC0452B66, 0xFFFFFFFF: 0xC04851D5,
}  # fmt: skip
DOCUMENTED_TOKENS = {
    0: (0x9BA84CEC, 0x3D862B6C), 1: (0xAABFA147, 0xBDC26626), 2: (0x7E39BAFD, 0x3EC5ED46),
    3: (0x7ECCDE0E, 0x3EC297B5), 4: (0x585B1322, 0x3F5C0E72), 49151: (0xFE21AE4B, 0xBFCBF20C),
}  # fmt: skip
SIZES = (1, 2, 3, 5, 63, 64, 65, 511, 513, 1000, 4097, 50_000)
"""Few are multiples of four or of a block."""

draws = st.builds(
    Draw,
    seed=st.integers(0, 2**64 - 1),
    temperature=st.sampled_from([0.0, 1e-300, 1e-6, 0.05, 0.7, 1.0, 1.0, 2.5, 1e4, 1e38]),
    top_k=st.sampled_from([0, 0, 1, 2, 20, 700, 10**6]),
    top_p=st.one_of(st.sampled_from([1.0, 1.0, 1 - 2**-53, 0.9, 1e-300]), st.floats(1e-6, 1.0)),
    min_p=st.one_of(st.sampled_from([0.0, 0.0, 1.0, 1e-300]), st.floats(0.0, 1.0)),
)
positions = st.integers(0, 2**62)


def normal(size: int, spread: float, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * spread


def tied(size: int, spread: float, seed: int) -> Tensor:
    return normal(size, spread, seed).round()


def sorted_up(size: int, spread: float, seed: int) -> Tensor:
    return normal(size, spread, seed).sort().values


def sorted_down(size: int, spread: float, seed: int) -> Tensor:
    return normal(size, spread, seed).sort(descending=True).values


def mostly_banned(size: int, spread: float, seed: int) -> Tensor:
    logits = torch.full((size,), -torch.inf)
    logits[seed % 7 :: max(1, size // 5)] = spread
    logits[-1] = spread + seed % 2
    return logits


def half_banned(size: int, spread: float, seed: int) -> Tensor:
    logits = normal(size, spread, seed)
    logits[1::2] = -torch.inf
    return logits


def far_apart(size: int, spread: float, seed: int) -> Tensor:
    return normal(size, spread, seed) * 1e36


def signed_zeros(size: int, spread: float, seed: int) -> Tensor:
    return normal(size, spread, seed).sign() * 0.0


KINDS = (normal, normal, tied, sorted_up, sorted_down, mostly_banned, half_banned, far_apart, signed_zeros)
rows = st.builds(
    lambda kind, size, spread, seed: kind(size, spread, seed),
    st.sampled_from(KINDS),
    st.one_of(st.sampled_from(SIZES), st.integers(1, 3000), st.integers(1, 300)),
    st.sampled_from([0.0, 1e-6, 0.3, 1.0, 3.0, 30.0]),
    st.integers(0, 10_000),
)


def native_step(native: CDLL, logits: Tensor, draw: Draw, position: int, count: int) -> DraftStep:
    """One row through the library; without the places that a small vocabulary cannot fill."""
    token = c_int64(-7)
    ids, scores = np.full(count, -7), np.full(count, np.nan, dtype=np.float32)
    warp = (draw.temperature, draw.top_p, draw.min_p, draw.top_k)
    asked = DrawOfRow(draw.seed, position, *warp, count)
    row = logits.contiguous()
    native.ssd_test_draw(
        c_void_p(row.data_ptr()), c_int64(len(row)), byref(asked), byref(token), _at(ids), _at(scores)
    )
    filled = int((ids != UNUSABLE).sum())
    assert (ids[filled:] == UNUSABLE).all()
    assert (scores[filled:] == -np.inf).all()
    return DraftStep(token.value, tuple(ids[:filled].tolist()), tuple(scores[:filled].tolist()))


def assert_same(native: CDLL, logits: Tensor, draw: Draw, position: int, count: int) -> None:
    """Token, candidates and scores with candidates, and the token alone."""
    assert native_step(native, logits, draw, position, count) == draft_step(logits, draw, position, count)
    alone = native_step(native, logits, draw, position, 0)
    assert alone == DraftStep(draw_token(logits, draw, position), (), ())


def native_noise(native: CDLL, words: Tensor) -> tuple[Tensor, Tensor]:
    """The noise of `words` and its bounds, float32 each."""
    asked = words.numpy().astype(np.uint32)
    noise, bounds = np.empty(len(asked), np.float32), np.empty(len(asked), np.float32)
    native.ssd_test_noise(_at(asked), c_int64(len(asked)), _at(noise), _at(bounds))
    return torch.from_numpy(noise), torch.from_numpy(bounds)


def native_words(native: CDLL, seed: int, position: int, size: int) -> list[int]:
    blocks = -(-size // 64)
    words = np.empty(blocks * 64, np.uint32)
    native.ssd_test_words(c_uint64(seed), c_int64(position), c_int64(blocks), _at(words))
    return [int(word) for word in words[:size]]


def _at(array: np.ndarray[Any, Any]) -> c_void_p:
    return c_void_p(array.ctypes.data)


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    native: CDLL, counter: list[int], key: list[int], output: list[int]
) -> None:
    """Random123's known-answer vectors."""
    given_counter, given_key, answer = (c_uint32 * 4)(*counter), (c_uint32 * 2)(*key), (c_uint32 * 4)()
    native.ssd_test_philox(given_counter, given_key, answer)
    assert list(answer) == output


def test_the_documented_vectors_hold(native: CDLL) -> None:
    """Words and noise that docs/noise.md prints, bit for bit."""
    words = native_words(native, 0x0123456789ABCDEF, 1000, 49152)
    assert {token: words[token] for token in DOCUMENTED_TOKENS} == {
        token: word for token, (word, _) in DOCUMENTED_TOKENS.items()
    }
    expected = DOCUMENTED_WORDS | dict(DOCUMENTED_TOKENS.values())
    noise, _ = native_noise(native, torch.tensor(list(expected)))
    assert [int(bits) & 0xFFFFFFFF for bits in noise.view(torch.int32)] == list(expected.values())


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**64 - 1), positions, st.integers(1, 500))
def test_words_equal_the_reference(native: CDLL, seed: int, position: int, size: int) -> None:
    """Made in blocks of 64, for any seed and any position."""
    expected = vocabulary_words(seed, position, size, torch.device("cpu")).tolist()
    assert native_words(native, seed, position, size) == expected


def test_noise_equals_the_reference_and_stays_below_its_bound(native: CDLL) -> None:
    """At both tails, at the seam of the formulas, and at 10^6 words between; every bit."""
    near = torch.arange(-3000, 3000)
    seams = [near + seam for seam in (3000, SMALL_V_LIMIT, 2**31, 2**32 - 3001)]
    spread = torch.randint(0, 2**32, (1_000_000,), generator=torch.Generator().manual_seed(2))
    words = torch.cat([spread, *seams])
    noise, bounds = native_noise(native, words)
    assert torch.equal(noise.view(torch.int32), noise_of_words(words).view(torch.int32))
    assert (bounds >= noise).all()
    assert (bounds - noise)[words > 1].max() < 3.2
    assert float(noise.max()) <= GUMBEL_MAX < 22.8739


@pytest.mark.parametrize("floor", [-np.inf, -28.0, -27.7, -3.0, -0.0])
def test_masses_equal_the_reference(native: CDLL, floor: float) -> None:
    """Every mass, and the sum of those that reach a floor, from no mass at all to the largest."""
    dense, random = torch.linspace(-45, 0, 20_000), -normal(20_001, 3.0, 1).abs()
    scores = torch.cat([dense, random, torch.tensor([-1e30, -0.0, 0.0, -1e-45, -27.725887])]).numpy()
    found = np.empty(len(scores), np.uint64)
    native.ssd_test_masses.restype = c_uint64
    total = native.ssd_test_masses(_at(scores), c_int64(len(scores)), c_float(floor), _at(found))
    expected = masses(torch.from_numpy(scores)).numpy()
    assert found.astype(np.int64).tolist() == expected.tolist()
    assert total == expected[scores >= np.float32(floor)].sum()


@settings(deadline=None, max_examples=150)
@given(rows, draws, positions, st.integers(1, 9))
@example(torch.zeros(1), Draw(1, 1.0, top_k=1, top_p=0.5, min_p=1.0), 0, 4)
@example(torch.zeros(1), GREEDY, 0, 4)
def test_any_row_is_drawn_as_by_the_reference(
    native: CDLL, logits: Tensor, draw: Draw, position: int, count: int
) -> None:
    """Random, tied, sorted, banned and extreme rows under every truncation and temperature."""
    assert_same(native, logits, draw, position, count)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, 2.0, -torch.inf, 3e38, 1e-45]), min_size=1, max_size=9),
    draws,
)
def test_the_smallest_rows_are_drawn_as_by_the_reference(
    native: CDLL, values: list[float], draw: Draw
) -> None:
    """Handfuls of the values at which floating point is odd."""
    assert_same(native, torch.tensor(values), draw, 3, len(values))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", dict.fromkeys(KINDS))
def test_every_size_is_drawn_as_by_the_reference(native: CDLL, kind: Any, size: int) -> None:
    """Vocabularies that neither four nor the block divides, each under three warps."""
    logits = kind(size, 2.0, size)
    for draw in (
        GREEDY,
        Draw(5, 1.0),
        Draw(6, 0.8, top_p=0.9),
        Draw(7, 1.3, top_k=40, top_p=0.5, min_p=0.02),
    ):
        assert_same(native, logits, draw, 1000, 4)


@cache
def flat_row_tokens(top_k: int, top_p: float, min_p: float) -> list[int]:
    """What the reference draws at eight positions of `flat_row`."""
    return [
        draw_token(flat_row(), Draw(position * 7919, 1.0, top_k, top_p, min_p), position)
        for position in range(8)
    ]


@cache
def flat_row() -> Tensor:
    return normal(49_152, 1.0, 8)


@pytest.mark.parametrize("top_p", [0.02, 0.5, 0.95, 1.0])
@pytest.mark.parametrize(("top_k", "min_p"), [(0, 0.0), (0, 0.3), (3000, 0.0), (45_000, 0.001)])
def test_many_positions_of_a_large_row_agree(native: CDLL, top_p: float, top_k: int, min_p: float) -> None:
    """The nucleus of a flat row holds thousands of tokens, and its border is met again and again."""
    for position, token in enumerate(flat_row_tokens(top_k, top_p, min_p)):
        draw = Draw(position * 7919, 1.0, top_k, top_p, min_p)
        assert native_step(native, flat_row(), draw, position, 0).token == token


@pytest.mark.parametrize("kept", [1, 3, 4, 7])
@pytest.mark.parametrize("side", [0.0, 1.0])
def test_borders_of_the_nucleus_are_exact(native: CDLL, kept: int, side: float) -> None:
    """Eight equal tokens, and a top_p that is a number of eighths, one last bit more or less."""
    logits, top_p = torch.zeros(8), float(np.nextafter(kept / 8, side))
    for position in range(40):
        draw = Draw(3, 1.0, top_p=top_p)
        assert native_step(native, logits, draw, position, 0).token == draw_token(logits, draw, position)


def test_a_whole_small_vocabulary_can_be_ranked(native: CDLL) -> None:
    """As many candidates as tokens, or more: all of them, best first."""
    logits = tied(300, 2.0, 1)
    for draw in (GREEDY, Draw(9, 0.9, top_p=0.2)):
        assert native_step(native, logits, draw, 5, 310) == draft_step(logits, draw, 5, 310)


@pytest.mark.parametrize("place", [0, 63, 64, 3000])
@pytest.mark.parametrize("value", [torch.nan, -torch.nan, torch.inf])
@pytest.mark.parametrize("draw", [GREEDY, Draw(1, 0.7, top_p=0.9), Draw(1, 1.0)])
def test_rows_with_a_nan_or_infinity_are_unusable(native: CDLL, draw: Draw, value: float, place: int) -> None:
    """Wherever it stands and whatever its sign; the next row of the same scratch does not notice."""
    good = normal(3001, 3.0, 0)
    bad = good.clone()
    bad[place] = value
    if value != value and np.signbit(value):
        bad.view(torch.int32)[place] |= -(2**31)
    expected = native_step(native, good, draw, 5, 3)
    assert native_step(native, bad, draw, 5, 3) == DraftStep(UNUSABLE, (), ())
    assert native_step(native, bad, draw, 5, 0) == DraftStep(UNUSABLE, (), ())
    assert native_step(native, good, draw, 5, 3) == expected == draft_step(good, draw, 5, 3)


@pytest.mark.parametrize("size", [1, 64, 3001])
def test_rows_of_bans_alone_are_unusable(native: CDLL, size: int) -> None:
    """Nothing finite is nothing to draw."""
    for draw in (GREEDY, Draw(1, 1.0, top_k=2)):
        assert native_step(native, torch.full((size,), -torch.inf), draw, 5, 2) == DraftStep(UNUSABLE, (), ())


def test_draws_depend_on_seed_and_position_alone(native: CDLL) -> None:
    """Rows of other lengths and other counts between two draws of one row change nothing."""
    logits, draw = normal(4097, 1.0, 3), Draw(11, 1.0, top_p=0.95)
    first = native_step(native, logits, draw, 2**40, 5)
    for size in (50_000, 3, 640):
        native_step(native, normal(size, 1.0, size), GREEDY, 7, 2)
    assert native_step(native, logits, draw, 2**40, 5) == first
    assert native_step(native, logits, replace(draw, seed=11 + 2**32), 2**40, 5) != first
    assert native_step(native, logits, draw, 2**40 + 2**32, 5) != first

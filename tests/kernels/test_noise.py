"""The noise of docs/noise.md: published vectors, our own vectors, accuracy, independence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ssd_kernels import elementary
from ssd_kernels.gumbel import (
    GUMBEL_MAX,
    GUMBEL_MIN,
    SMALL_V_LIMIT,
    array_noise,
    gumbel,
    gumbel_rows,
    noise_of_words,
    token_words,
    vocabulary_words,
)
from ssd_kernels.philox import philox4x32, philox4x32_reference

CPU = torch.device("cpu")
KNOWN_ANSWERS = [
    # kat_vectors of Random123 1.14, philox4x32 with 10 rounds: counter, key, output
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]
WORD_VECTORS = ["9ba84cec", "aabfa147", "7e39bafd", "7eccde0e", "585b1322", "fe21ae4b"]
NOISE_VECTORS = ["3d862b6c", "bdc26626", "3ec5ed46", "3ec297b5", "3f5c0e72", "bfcbf20c"]
words32 = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**64 - 1)


def critical_words() -> torch.Tensor:
    """Both tails, the seam between the two formulas, the zero of the noise, and 10^6 words between."""
    spread = torch.arange(-5000, 5000)
    seams = [5000, 2**32 - 5001, SMALL_V_LIMIT, int(2**32 * (1 - np.exp(-1)))]
    random = torch.randint(0, 2**32, (1_000_000,), generator=torch.Generator().manual_seed(1))
    return torch.cat([random, *(spread + seam for seam in seams)])


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter: list[int], key: list[int], output: list[int]) -> None:
    """Random123's known-answer vectors, in plain integers and in arrays."""
    c0, c1, c2, c3 = counter
    assert list(philox4x32_reference((c0, c1, c2, c3), (key[0], key[1]))) == output
    a0, a1, a2, a3 = (np.array([word]) for word in counter)
    assert [int(word[0]) for word in philox4x32((a0, a1, a2, a3), (key[0], key[1]))] == output


@given(st.lists(st.tuples(words32, words32, words32, words32), min_size=1, max_size=8), words32, words32)
def test_philox_is_the_same_in_integers_numpy_and_torch(
    counters: list[tuple[int, int, int, int]], k0: int, k1: int
) -> None:
    """Three ways to compute one function."""
    expected = [philox4x32_reference(counter, (k0, k1)) for counter in counters]
    a0, a1, a2, a3 = np.array(counters).T.copy()
    t0, t1, t2, t3 = torch.tensor(counters).unbind(-1)
    in_numpy = philox4x32((a0, a1, a2, a3), (k0, k1))
    in_torch = philox4x32((t0, t1, t2, t3), (k0, k1))
    assert np.stack(in_numpy, -1).tolist() == [list(words) for words in expected]
    assert torch.stack(in_torch, -1).tolist() == [list(words) for words in expected]


@given(seeds, seeds, st.integers(0, 2**20))
def test_words_are_laid_out_as_specified(seed: int, position: int, token_id: int) -> None:
    """Counter (token // 4, position low, position high, 0), key the seed's halves, word token % 4."""
    low = 2**32 - 1
    counter = (token_id // 4, position & low, position >> 32, 0)
    expected = philox4x32_reference(counter, (seed & low, seed >> 32))[token_id % 4]
    assert token_words(seed, position, torch.tensor([token_id])).item() == expected


def test_the_documented_vectors_hold() -> None:
    """Bit for bit what docs/noise.md prints, so that other implementations can be compared."""
    ids = torch.tensor([0, 1, 2, 3, 4, 49151])
    noise = gumbel(0x0123456789ABCDEF, 1000, ids)
    assert [f"{word:08x}" for word in token_words(0x0123456789ABCDEF, 1000, ids).tolist()] == WORD_VECTORS
    assert [f"{bits & 0xFFFFFFFF:08x}" for bits in noise.view(torch.int32).tolist()] == NOISE_VECTORS


@given(seeds, st.integers(0, 2**40), st.integers(1, 50))
def test_a_whole_vocabulary_equals_its_tokens(seed: int, position: int, vocab_size: int) -> None:
    """Four words to a call, at any vocabulary size, also one that four does not divide."""
    whole = vocabulary_words(seed, position, vocab_size, CPU)
    assert torch.equal(whole, token_words(seed, position, torch.arange(vocab_size)))


def test_noise_does_not_depend_on_what_else_is_asked() -> None:
    """The same bits alone, in any order, in any company, and in a row of a batch."""
    ids = torch.randperm(5000, generator=torch.Generator().manual_seed(3))[:301]
    noise = gumbel(7, 11, ids)
    for i in range(0, 301, 50):
        assert torch.equal(gumbel(7, 11, ids[i : i + 1]), noise[i : i + 1])
    assert torch.equal(gumbel(7, 11, ids.flip(0)), noise.flip(0))
    assert torch.equal(gumbel_rows([1, 7], [2, 11], ids.expand(2, -1))[1], noise)


def test_noise_is_the_same_bits_in_numpy_and_torch() -> None:
    """No operation of the formula is contracted or reordered by either library."""
    words = critical_words()
    assert torch.equal(noise_of_words(words), array_noise(words))


def test_noise_is_accurate_in_both_tails() -> None:
    """Within 2.5 units in the last place of max(1, |g|) of the double-precision value."""
    words = critical_words()
    exact = -np.log(-np.log1p(-(words.numpy() + 0.5) / 2.0**32))
    unit = np.spacing(np.maximum(np.abs(exact), 1.0).astype(np.float32))
    assert np.max(np.abs(noise_of_words(words).numpy() - exact) / unit) < 2.5


def test_noise_stays_within_its_documented_range() -> None:
    """The first and the last word give the extremes."""
    highest, lowest = noise_of_words(torch.tensor([0, 2**32 - 1])).tolist()
    assert GUMBEL_MIN <= lowest < GUMBEL_MIN + 1e-4
    assert GUMBEL_MAX - 1e-4 < highest <= GUMBEL_MAX


def test_noise_never_rises_with_its_word() -> None:
    """Larger words mean less noise, up to rounding, also across the seam of the two formulas."""
    for seam in (5000, SMALL_V_LIMIT, 2**32 - 5001):
        noise = noise_of_words(torch.arange(seam - 5000, seam + 5000))
        assert (noise.diff() <= 5e-7).all()


def test_logarithm_and_exponential_are_accurate() -> None:
    """Within two (log) and four (exp2) units in the last place of the double-precision value."""
    x = torch.logspace(-9, 9, 100_001, dtype=torch.float64).float()
    exact = np.log(x.numpy().astype(np.float64))
    unit = np.spacing(np.maximum(np.abs(exact), 1.0).astype(np.float32))
    assert np.max(np.abs(elementary.log(x).numpy() - exact) / unit) < 2
    power = torch.linspace(-42, 0, 100_001)
    relative = elementary.exp2(power).numpy() / np.exp2(power.numpy().astype(np.float64)) - 1
    assert np.max(np.abs(relative)) < 4 * 2.0**-23
    assert elementary.exp2(torch.tensor([0.0, -1.0, -40.0])).tolist() == [1.0, 0.5, 2.0**-40]


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_noise_is_gumbel_along_every_axis(axis: str) -> None:
    """Kolmogorov-Smirnov and lag-1 correlation, each with an error rate of 1e-6 at these fixed inputs."""
    n = 10_000
    one = torch.zeros(1, dtype=torch.int64)
    samples = {
        "seed": lambda: torch.cat([gumbel(seed, 3, one) for seed in range(n // 10)]),
        "position": lambda: torch.cat([gumbel(5, position, one) for position in range(n // 10)]),
        "token": lambda: gumbel(5, 3, torch.arange(n)),
    }[axis]()
    assert stats.kstest(samples.numpy(), "gumbel_r").pvalue > 1e-6
    assert stats.spearmanr(samples[1:].numpy(), samples[:-1].numpy()).pvalue > 1e-6


def test_noise_of_neighbouring_keys_is_uncorrelated() -> None:
    """Seeds, positions and tokens that differ in one bit share nothing."""
    ids = torch.arange(20_000)
    rows = [gumbel(0, 0, ids), gumbel(1, 0, ids), gumbel(1 << 32, 0, ids), gumbel(0, 1, ids)]
    rows.append(gumbel(0, 1 << 32, ids))
    for first, second in itertools.combinations(rows, 2):
        assert abs(np.corrcoef(first.numpy(), second.numpy())[0, 1]) < 5 / np.sqrt(len(ids))

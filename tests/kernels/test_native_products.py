"""A product in panels: close to the numbers that were packed, and each row by itself, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import CDLL

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ssd_kernels.cpu.matrix import Format, NativeMatrix, use_threads

GROUP = 32
CODED = (Format.INT8, Format.INT4, Format.INT4_WIDE, Format.INT8_FINE)
FOUR_BITS = (Format.INT4, Format.INT4_WIDE)
EACH_FORMAT = pytest.mark.parametrize("kind", Format, ids=lambda kind: kind.name.lower())
SHAPES = [(1, 1), (5, 31), (23, 32), (24, 33), (47, 64), (49, 65), (97, 129), (200, 300)]
"""Outputs and inputs around the sizes of panels (12, 24, 48), groups (32) and stretches (64)."""
AWKWARD = [*range(1, 21), 33, 64]
"""Numbers of rows, around those that one register block takes."""

a_sharing_fixture = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def normal(*shape: int, seed: int = 0, spread: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def as_multiplied(x: Tensor, kind: Format) -> Tensor:
    """The inputs that a product uses: rounded to int8 in groups of 32 where the weights are codes."""
    if kind not in CODED:
        return x.double()
    groups = in_groups(x)
    largest = groups.abs().amax(-1, keepdim=True)
    codes = (groups * torch.where(largest > 1e-30, 127 / largest, 0.0)).round()
    return (codes * (largest / 127)).flatten(-2)[..., : x.shape[-1]].double()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads are left as they were."""
    yield
    use_threads(1)


@EACH_FORMAT
def test_a_product_is_that_of_the_numbers_packed(native: CDLL, kind: Format) -> None:
    """Within 2e-6 of the sum of the magnitudes, in double precision over what `dense` says is stored."""
    for out, inputs in SHAPES:
        matrix = NativeMatrix(normal(out, inputs, seed=1), kind, native)
        x = normal(11, inputs, seed=2, spread=3.0)
        used, stored = as_multiplied(x, kind), matrix.dense().double().t()
        magnitudes = used.abs() @ stored.abs()
        if kind in FOUR_BITS:  # codes and minima are summed apart, and may cancel
            magnitudes += 4 * used.abs().sum(1, keepdim=True)
        assert ((matrix(x) - used @ stored).abs() <= 2e-6 * magnitudes).all(), (out, inputs)


@EACH_FORMAT
@pytest.mark.parametrize("spread", [1e-4, 1.0, 1e3])
def test_what_is_packed_is_the_weight_as_the_format_rounds_it(
    native: CDLL, kind: Format, spread: float
) -> None:
    """float32 as it is, bf16 the nearest; codes within half a step of their group of 32."""
    for out, inputs in SHAPES:
        weight = normal(out, inputs, seed=3, spread=spread)
        dense = NativeMatrix(weight, kind, native).dense()
        if kind in CODED:
            assert ((weight - dense).abs() <= allowed_error(weight, kind)).all(), (out, inputs)
        else:
            assert torch.equal(dense, weight if kind is Format.FLOAT32 else weight.bfloat16().float())


def allowed_error(weight: Tensor, kind: Format) -> Tensor:
    """Half a step, and what float16 does to scales and minima: 2^-11 of them, 2^-25 among subnormals."""
    groups = in_groups(weight)
    largest = groups.abs().amax(-1, keepdim=True)
    steps = (groups.amax(-1) - groups.amin(-1))[..., None] / 15 if kind in FOUR_BITS else largest / 127
    error = steps / 2 + largest * 2**-9 + 127 * 2**-25
    return error.expand_as(groups).flatten(1)[:, : weight.shape[1]]


def in_groups(x: Tensor) -> Tensor:
    """`x` `[N, in]` as `[N, groups, 32]`, filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)


@EACH_FORMAT
def test_a_row_does_not_depend_on_the_others(native: CDLL, kind: Format) -> None:
    """Alone, among 2 … 512, wherever it stands and on 1 … 4 threads: the same bits."""
    matrix = NativeMatrix(normal(149, 97), kind, native)
    x = normal(512, 97, seed=4)
    use_threads(1)
    whole = matrix(x)
    for threads in (1, 2, 3, 4):
        use_threads(threads)
        assert torch.equal(matrix(x), whole)
        for rows in AWKWARD:
            for first in (0, 3, 511 - rows):
                assert torch.equal(matrix(x[first : first + rows]), whole[first : first + rows]), (
                    rows,
                    first,
                )


@a_sharing_fixture
@given(
    kind=st.sampled_from(Format),
    out=st.integers(1, 160),
    inputs=st.integers(1, 200),
    rows=st.integers(1, 24),
    threads=st.integers(1, 4),
)
def test_no_shape_lets_rows_touch(
    native: CDLL, kind: Format, out: int, inputs: int, rows: int, threads: int
) -> None:
    """Every row of a random product alone has the bits that it has among the others."""
    matrix = NativeMatrix(normal(out, inputs, seed=out), kind, native)
    x = normal(rows, inputs, seed=inputs)
    use_threads(threads)
    whole = matrix(x)
    use_threads(1)
    assert torch.equal(torch.cat([matrix(row[None]) for row in x]), whole)


@EACH_FORMAT
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_spoils_its_own_row(native: CDLL, kind: Format, poison: float) -> None:
    """No output of that row is finite, and no other row's bits change."""
    matrix = NativeMatrix(normal(60, 70), kind, native)
    x = normal(9, 70, seed=5)
    clean = matrix(x)
    for place in (0, 31, 32, 69):
        spoilt = x.clone()
        spoilt[4, place] = poison
        product = matrix(spoilt)
        assert not product[4].isfinite().any()
        assert torch.equal(torch.cat((product[:4], product[5:])), torch.cat((clean[:4], clean[5:])))


@EACH_FORMAT
@pytest.mark.parametrize("size", [0.0, 1e-38, 1e-20, 1e20])
def test_rows_of_any_size_multiply(native: CDLL, kind: Format, size: float) -> None:
    """Zeros give zeros, the smallest and the largest numbers give finite ones."""
    matrix = NativeMatrix(normal(30, 70), kind, native)
    product = matrix(torch.full((3, 70), size))
    assert product.isfinite().all()
    assert size != 0.0 or not product.any()


@EACH_FORMAT
def test_a_weight_of_zeros_gives_zeros(native: CDLL, kind: Format) -> None:
    """No step is zero by division."""
    assert not NativeMatrix(torch.zeros(30, 70), kind, native)(normal(3, 70)).any()


@EACH_FORMAT
def test_a_product_of_no_rows_is_empty(native: CDLL, kind: Format) -> None:
    """Nothing is read or written."""
    assert NativeMatrix(normal(30, 70), kind, native)(torch.empty(0, 70)).shape == (0, 30)


def test_another_width_is_refused(native: CDLL) -> None:
    """With both widths in the message."""
    with pytest.raises(RuntimeError, match="got rows of 69 inputs, the weight has 70"):
        NativeMatrix(normal(30, 70), Format.FLOAT32, native)(normal(3, 69))

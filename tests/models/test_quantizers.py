"""Weight matrices in fewer bits: how close, how small, and each row by itself."""

from __future__ import annotations

import pytest
import torch

from ssd_plugins.quantizers import (
    BFloat16Matrix,
    BFloat16Quantizer,
    Int4Matrix,
    Int4Quantizer,
    Int8Matrix,
    Int8Quantizer,
)
from ssd_runtime.models.linear import Float32Quantizer, PackedMatrix, PlainMatrix, Quantizer, WeightMatrix

# relative error of a product and bits a weight, scales included
CASES: list[tuple[Quantizer, float, float]] = [
    (Float32Quantizer(), 1e-6, 32.0),
    (BFloat16Quantizer(), 0.005, 16.0),
    (Int8Quantizer(), 0.012, 8.5),
    (Int4Quantizer(), 0.1, 5.0),
]


def _weight(out: int, inputs: int) -> torch.Tensor:
    return torch.randn(out, inputs, generator=torch.Generator().manual_seed(out))


@pytest.mark.parametrize(("quantizer", "error", "bits"), CASES, ids=[c[0].name for c in CASES])
def test_products_are_close_and_bytes_are_counted(quantizer: Quantizer, error: float, bits: float) -> None:
    """The product's relative error and the allocated size stay within what the format promises."""
    weight = _weight(240, 512)
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(1))
    matrix = quantizer.pack(weight.clone())
    exact = x @ weight.t()
    assert (matrix(x) - exact).norm() / exact.norm() < error
    assert matrix.nbytes * 8 <= bits * weight.numel()


MATRICES: list[WeightMatrix] = [
    *(quantizer.pack(_weight(*shape)) for quantizer, _, _ in CASES for shape in ((192, 64), (64, 1536))),
    *(kind(_weight(64, 1536)) for kind in (PlainMatrix, BFloat16Matrix, Int8Matrix, Int4Matrix)),
    PackedMatrix(_weight(1000, 96)),
]


@pytest.mark.parametrize("matrix", MATRICES, ids=lambda m: type(m).__name__)
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_do_not_depend_on_their_number_or_place(matrix: WeightMatrix, threads: int) -> None:
    """Any slice of the rows, multiplied alone, gives the bits that it has among all."""
    inputs = 64 if _accepts(matrix, 64) else 1536 if _accepts(matrix, 1536) else 96
    x = torch.randn(160, inputs, generator=torch.Generator().manual_seed(2))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = matrix(x)
        for rows in (*range(1, 20), 33, 64, 100, 142):
            for first in (0, 5, 18):
                assert torch.equal(matrix(x[first : first + rows]), whole[first : first + rows]), (
                    rows,
                    first,
                )
    finally:
        torch.set_num_threads(before)


def _accepts(matrix: WeightMatrix, inputs: int) -> bool:
    try:
        matrix(torch.zeros(2, inputs))
    except RuntimeError:
        return False
    return True


def test_int4_keeps_vocabularies_in_int8() -> None:
    """A head decides tokens and is worth its bits."""
    head = _weight(1440, 64)
    assert Int4Quantizer().pack(head).nbytes == Int8Quantizer().pack(head).nbytes


def test_rows_that_are_no_whole_groups_multiply_too() -> None:
    """A weight of 40 inputs is close to the exact product in every format."""
    weight, x = _weight(64, 40), torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    for quantizer, error, _ in CASES:
        exact = x @ weight.t()
        assert (quantizer.pack(weight)(x) - exact).norm() / exact.norm() < 2 * error


def test_a_row_of_zeros_stays_zero() -> None:
    """No scale is zero, so an unused output is exactly zero and not NaN."""
    for quantizer, _, _ in CASES:
        product = quantizer.pack(torch.zeros(64, 64))(torch.ones(3, 64))
        assert torch.equal(product, torch.zeros(3, 64))

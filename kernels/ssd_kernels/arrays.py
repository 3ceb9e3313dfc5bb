"""What the kernels' formulas need to be written once for NumPy arrays and for tensors.

On the CPU the formulas run on NumPy views of the tensors: the same memory and, since every operation is
rounded by itself, the same bits, at a third of the cost of a call for the short arrays of a truncated row.
Nor do they wake the threads of an OpenMP pool for a vocabulary, which gains nothing, and costs ten
milliseconds whenever one of these threads' cores is busy with another lane.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Array = Any
"""A `numpy.ndarray` or a `torch.Tensor`; the two in one expression only as array and Python number."""


def native(tensor: Tensor) -> Array:
    """The tensor itself, or a NumPy view of it where it lies in main memory."""
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def as_tensor(array: Array) -> Tensor:
    """The tensor behind `native`; shares memory."""
    return array if isinstance(array, Tensor) else torch.from_numpy(array)


def integers(values: list[Any], like: Array) -> Array:
    """An int64 array of the library and device of `like`."""
    if isinstance(like, Tensor):
        return torch.tensor(values, dtype=torch.int64, device=like.device)
    return np.array(values, dtype=np.int64)


def to_float32(array: Array) -> Array:
    """Converted to the nearest float32, ties to even."""
    return array.to(torch.float32) if isinstance(array, Tensor) else array.astype(np.float32)


def to_int32(array: Array) -> Array:
    """Converted towards zero."""
    return array.to(torch.int32) if isinstance(array, Tensor) else array.astype(np.int32)


def to_int64(array: Array) -> Array:
    """Converted towards zero."""
    return array.to(torch.int64) if isinstance(array, Tensor) else array.astype(np.int64)


def bits_of(array: Array) -> Array:
    """The int32 whose bits a float32 array has; shares memory."""
    return array.view(torch.int32 if isinstance(array, Tensor) else np.int32)


def float_of(array: Array) -> Array:
    """The float32 whose bits an int32 array has; shares memory."""
    return array.view(torch.float32 if isinstance(array, Tensor) else np.float32)


def indices_where(condition: Array) -> Array:
    """Ascending int64 indices at which a boolean vector is true."""
    return condition.nonzero().squeeze(-1) if isinstance(condition, Tensor) else np.flatnonzero(condition)


def where(condition: Array, first: Array, second: Array) -> Array:
    """`first` where `condition`, else `second`."""
    return (torch if isinstance(condition, Tensor) else np).where(condition, first, second)


def divide(array: Array, divisor: float) -> Array:
    """True float32 division, overflowing to infinity."""
    if isinstance(array, Tensor):
        # by a tensor, since a device may turn division by a number into a product with its inverse
        return array / torch.tensor(divisor, dtype=torch.float32, device=array.device)
    with np.errstate(over="ignore"):
        return array / np.float32(divisor)


def clamp_below(array: Array, floor: float) -> Array:
    """`array` where it is above `floor`, else `floor`."""
    return array.clamp(min=floor) if isinstance(array, Tensor) else np.maximum(array, np.float32(floor))


def library_log(array: Array) -> Array:
    """The library's own logarithm: quick, but with last bits that nothing may rest on."""
    return array.log() if isinstance(array, Tensor) else np.log(array)


def copied(tensor: Tensor) -> Tensor:
    """A copy in memory of its own."""
    array = native(tensor)
    return array.clone() if isinstance(array, Tensor) else as_tensor(array.copy())


def library_exp(array: Array) -> Array:
    """The library's own exponential; as `library_log`."""
    return array.exp() if isinstance(array, Tensor) else np.exp(array)

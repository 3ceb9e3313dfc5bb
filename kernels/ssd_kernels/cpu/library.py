"""The compiled library behind its plain C interface: loading it, and the structs of `src/api.h`.

The environment variable `SSD_CPU_KERNELS` chooses an instruction set by name (`portable`, `avx2`, `avx512`,
`neon`), or `torch` for none: the decoder then runs on PyTorch. Left out, the best that fits is taken.
A folder before the name has other libraries than the installed ones: `build/asan/avx2`, `build/asan/`.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ssd_kernels.cpu.compile import interface

FOLDER = Path(__file__).parent / "lib"
VARIABLE = "SSD_CPU_KERNELS"
TORCH = "torch"
_LADDER = ("portable", "avx2", "avx512")
"""What runs one of these runs those before it."""
SKIPPED = -2
"""The draw of a token for which none was asked, or before which a draft was refused."""


class Matrix(Structure):
    """`ssd_matrix`: owned by the library."""

    _fields_ = [
        ("format", c_int32), ("panel", c_int32), ("out", c_int64), ("in_", c_int64),
        ("padded_in", c_int64), ("panel_bytes", c_int64), ("bytes", c_int64), ("data", c_void_p),
    ]  # fmt: skip


class Layer(Structure):
    """`ssd_layer`: addresses of matrices and vectors; None where a model has no such thing."""

    _fields_ = [
        ("qkv", c_void_p), ("output", c_void_p), ("gate_up", c_void_p), ("down", c_void_p),
        ("qkv_bias", c_void_p), ("output_bias", c_void_p), ("gate_up_bias", c_void_p),
        ("down_bias", c_void_p), ("qk_norm", c_void_p), ("input_norm", c_void_p),
        ("post_norm", c_void_p), ("window", c_int64),
    ]  # fmt: skip


class Model(Structure):
    """`ssd_decoder`."""

    _fields_ = [
        ("vocab", c_int64), ("hidden", c_int64), ("layers", c_int64), ("heads", c_int64),
        ("kv_heads", c_int64), ("head_dim", c_int64), ("intermediate", c_int64),
        ("rms_eps", c_float), ("rope_factor", c_float), ("embedding_bits", c_int32), ("unused", c_int32),
        ("embedding", c_void_p), ("frequencies", c_void_p), ("norm", c_void_p), ("head", c_void_p),
        ("layer", POINTER(Layer)),
    ]  # fmt: skip


class KV(Structure):
    """`ssd_kv`."""

    _fields_ = [
        ("data", c_void_p), ("layer_bytes", c_int64), ("block_size", c_int64), ("format", c_int32),
        ("unused", c_int32),
    ]  # fmt: skip


class Pass(Structure):
    """`ssd_pass`."""

    _fields_ = [
        ("tokens", c_int64), ("wanted", c_int64), ("token_ids", c_void_p), ("positions", c_void_p),
        ("table_at", c_void_p), ("tables", c_void_p), ("wanted_tokens", c_void_p), ("logits", c_void_p),
        ("draws", c_void_p), ("expected", c_void_p), ("drawn_vocab", c_int64), ("count", c_int64),
        ("drawn", c_void_p), ("candidates", c_void_p), ("scores", c_void_p), ("stop", c_void_p),
        ("threads", c_int32), ("unused", c_int32),
    ]  # fmt: skip


class DrawOfRow(Structure):
    """`ssd_draw`."""

    _fields_ = [
        ("seed", c_uint64), ("position", c_int64), ("temperature", c_double), ("top_p", c_double),
        ("min_p", c_double), ("top_k", c_int64), ("count", c_int64),
    ]  # fmt: skip


class Copy(Structure):
    """`ssd_block_copy`."""

    _fields_ = [("source", c_int64), ("target", c_int64), ("tokens", c_int64)]


class LineOfBuild(Structure):
    """`ssd_line`."""

    _fields_ = [
        ("table_at", c_int64), ("result_at", c_int64), ("limit", c_int64), ("length", c_int64),
        ("first", c_int64), ("drawn", c_int64), ("copy", Copy),
    ]  # fmt: skip


class RowOfBuild(Structure):
    """`ssd_build_row`."""

    _fields_ = [
        ("draw", DrawOfRow), ("end_at", c_int64), ("end_count", c_int64), ("token_at", c_int64),
        ("tokens", c_int64), ("table_at", c_int64), ("length", c_int64), ("read", c_int64),
        ("result_at", c_int64), ("line_at", c_int64), ("lines", c_int64), ("waiting", c_int64),
        ("continues", c_int64),
    ]  # fmt: skip


class BuildCall(Structure):
    """`ssd_build_call`."""

    _fields_ = [
        ("rows", c_int64), ("copies", c_int64), ("chunk", c_int64), ("steps", c_int64),
        ("row", c_void_p), ("line", c_void_p), ("copy", c_void_p), ("token_ids", c_void_p),
        ("end_ids", c_void_p), ("tables", c_void_p), ("drawn_vocab", c_int64), ("count", c_int64),
        ("drawn", c_void_p), ("candidates", c_void_p), ("scores", c_void_p), ("step_tokens", c_void_p),
        ("step_seconds", c_void_p), ("stop", c_void_p), ("progress", c_int32), ("threads", c_int32),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Choice:
    """The library that serves, or None and why there is none. is_wrong: something else was asked for."""

    library: Path | None
    reason: str = ""
    is_wrong: bool = False

    @property
    def name(self) -> str:
        """The instruction set, or `torch`."""
        return self.library.stem.removeprefix("libssd_") if self.library else TORCH


def choice() -> Choice:
    """What `SSD_CPU_KERNELS` and this machine come to."""
    folder, name = _asked()
    if name == TORCH:
        return Choice(None, f"{VARIABLE} says so")
    try:
        usable = usable_libraries(folder)
    except OSError as error:
        return Choice(None, f"the native library cannot be loaded: {error}", is_wrong=bool(name))
    if not name:
        best = list(usable.values())[-1:]
        return Choice(best[0]) if best else Choice(None, f"no native library was built in {folder}")
    if name in usable:
        return Choice(usable[name])
    there = ", ".join([*usable, TORCH])
    return Choice(None, f"{VARIABLE}: {name!r} is not there or does not run here; there is: {there}", True)


def usable_libraries(folder: Path) -> dict[str, Path]:
    """The libraries in `folder` that this machine runs, by instruction set, the best one last."""
    files = {isa: file for isa in (*_LADDER, "neon") if (file := folder / f"libssd_{isa}.so").is_file()}
    probe = files.get(_LADDER[0]) or files.get("neon")
    if probe is None:
        return {}
    best = open_library(probe).ssd_best_isa().decode()
    fit = _LADDER[: _LADDER.index(best) + 1] if best in _LADDER else (best,)
    return {isa: files[isa] for isa in fit if isa in files}


def library_folder() -> Path:
    """Where the libraries lie: the folder in `SSD_CPU_KERNELS`, or that of the installed ones."""
    return _asked()[0]


def _asked() -> tuple[Path, str]:
    folder, name = os.path.split(os.environ.get(VARIABLE, ""))
    return Path(folder) if folder else FOLDER, name


@cache
def open_library(file: Path) -> ctypes.CDLL:
    """The library in `file`, with the types of its functions set. Raises `OSError`."""
    library = ctypes.CDLL(str(file.resolve()))
    if _interface_of(library) != interface():
        raise OSError(f"{file} was compiled from other sources; install again, or run cpu/compile.py")
    library.ssd_isa.restype = library.ssd_best_isa.restype = c_char_p
    library.ssd_pack.restype = library.ssd_pack_groups.restype = POINTER(Matrix)
    library.ssd_pack.argtypes = [c_int32, c_int64, c_int64, c_void_p]
    library.ssd_pack_groups.argtypes = [c_int32, c_int64, c_int64, c_void_p, c_void_p, c_void_p]
    library.ssd_free.argtypes = [POINTER(Matrix)]
    library.ssd_free.restype = None
    library.ssd_unpack.argtypes = [POINTER(Matrix), c_void_p]
    library.ssd_unpack.restype = None
    library.ssd_product.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p, c_int32]
    library.ssd_reserve.argtypes = [POINTER(Model), c_int64, c_int64, c_int32]
    library.ssd_forward.argtypes = [POINTER(Model), POINTER(KV), POINTER(Pass)]
    library.ssd_build.argtypes = [POINTER(Model), POINTER(KV), POINTER(BuildCall)]
    library.ssd_read_seconds.argtypes = [c_void_p, c_int64, c_int32]
    library.ssd_read_seconds.restype = c_double
    return library


def _interface_of(library: ctypes.CDLL) -> str:
    function = getattr(library, "ssd_interface", None)
    if function is None:
        return ""
    function.restype = c_char_p
    return str(function().decode())


def native_library() -> ctypes.CDLL | None:
    """The library that serves on this machine, or None where the decoder runs on PyTorch."""
    file = choice().library
    return None if file is None else open_library(file)

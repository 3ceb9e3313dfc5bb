"""Compiles the native library, once per instruction set of this machine. Needs only a C++17 compiler.

Run by the installation; by hand `python kernels/ssd_kernels/cpu/compile.py --help`. `CXX` names the compiler.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE / "src" / "library.cpp"
FOLDER = HERE / "lib"

# -ffp-contract=off: a product and a sum become one operation only where the source says so
FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fPIC", "-shared", "-fvisibility=hidden",
    "-pthread", "-Wall", "-Wextra", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
)  # fmt: skip
_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni")
ISA_FLAGS: dict[str, tuple[str, ...]] = {"portable": (), "avx2": _AVX2, "avx512": _AVX512, "neon": ()}
_X86 = ("portable", "avx2", "avx512")
ISAS_OF = {"x86_64": _X86, "AMD64": _X86, "aarch64": ("neon",), "arm64": ("neon",)}


class CompileError(Exception):
    """There is no compiler, or it failed; the message is what it said."""


def isas_here() -> tuple[str, ...]:
    """The instruction sets that a library is made for on this machine."""
    return ISAS_OF.get(platform.machine(), ("portable",))


@cache
def interface() -> str:
    """A digest of the C interface, which a library and the structs in `library.py` must agree on."""
    headers = b"".join((SOURCE.parent / name).read_bytes() for name in ("api.h", "draw_types.h"))
    return "x" + hashlib.sha256(headers).hexdigest()[:16]


def compile_library(isa: str, folder: Path = FOLDER, extra: Sequence[str] = ()) -> Path:
    """Compile the library for `isa` into `folder`, and return its file. Raises `CompileError`."""
    compiler = shlex.split(os.environ.get("CXX") or "c++")
    if shutil.which(compiler[0]) is None:
        raise CompileError(f"no compiler {compiler[0]!r}")
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"libssd_{isa}.so"
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    command = [
        *compiler,
        *FLAGS,
        *ISA_FLAGS[isa],
        f"-DSSD_ISA={isa}",
        f"-DSSD_INTERFACE={interface()}",
        *extra,
        str(SOURCE),
        "-o",
        str(temporary),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise CompileError(result.stderr.strip() or f"{compiler[0]} ended with status {result.returncode}")
    temporary.replace(target)
    return target


def compile_all(folder: Path = FOLDER) -> list[Path]:
    """Compile for every instruction set of this machine, side by side. Raises `CompileError`."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda isa: compile_library(isa, folder), isas_here()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", choices=sorted(ISA_FLAGS), action="append", help="default: all that fit")
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder of the libraries")
    parser.add_argument("--flags", default="", help="further compiler flags, such as -fsanitize=address")
    options = parser.parse_args()
    for isa in options.isa or isas_here():
        sys.stderr.write(f"{compile_library(isa, options.out, shlex.split(options.flags))}\n")


if __name__ == "__main__":
    main()

"""The compiled library, once for every instruction set that this machine runs."""

from __future__ import annotations

import subprocess
from ctypes import CDLL
from pathlib import Path

import pytest
import torch

from ssd_kernels.cpu.compile import FLAGS, ISA_FLAGS, isas_here

SOURCES = Path(__file__).parents[2] / "kernels" / "ssd_kernels" / "cpu" / "src"
RUNS_WITH = {"portable": ("DEFAULT", "AVX2", "AVX512"), "avx2": ("AVX2", "AVX512"), "avx512": ("AVX512",)}


@pytest.fixture(scope="session", params=isas_here())
def native(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CDLL:
    """What `sample_api.h` declares, compiled for one instruction set; skips where it cannot be."""
    isa = request.param
    if torch.backends.cpu.get_cpu_capability() not in RUNS_WITH.get(isa, (isa.upper(),)):
        pytest.skip(f"this machine does not run {isa}")
    folder = tmp_path_factory.mktemp(isa)
    source, target = folder / "sampling.cpp", folder / "sampling.so"
    source.write_text('#include "sample_api.h"\n')
    command = [
        "c++",
        *FLAGS,
        *ISA_FLAGS[isa],
        f"-DSSD_ISA={isa}",
        f"-I{SOURCES}",
        str(source),
        "-o",
        str(target),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C++ compiler")
    return CDLL(str(target))

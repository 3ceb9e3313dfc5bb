"""The native sources are free of what a compiler warns of."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess

import pytest

from ssd_kernels.cpu.compile import FLAGS, ISA_FLAGS, SOURCE, isas_here

COMPILER = shlex.split(os.environ.get("CXX") or "c++")


@pytest.mark.skipif(shutil.which(COMPILER[0]) is None, reason="there is no compiler")
@pytest.mark.parametrize("isa", isas_here())
def test_no_warning_for_any_instruction_set(isa: str) -> None:
    """With the flags of the installation, which ask for nearly all of them."""
    flags = [*FLAGS, *ISA_FLAGS[isa], f"-DSSD_ISA={isa}", "-DSSD_INTERFACE=x", "-Werror", "-fsyntax-only"]
    result = subprocess.run([*COMPILER, *flags, str(SOURCE)], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.returncode == 0

"""The compiled libraries, one for every instruction set that this machine runs."""

from __future__ import annotations

from ctypes import CDLL

import pytest

from ssd_kernels.cpu.library import library_folder, open_library, usable_libraries

LIBRARIES = usable_libraries(library_folder())
NOT_COMPILED = pytest.param(
    "", marks=pytest.mark.skip(reason="the native library was not compiled: there was no compiler")
)


@pytest.fixture(scope="session", params=[*LIBRARIES] or [NOT_COMPILED])
def isa(request: pytest.FixtureRequest) -> str:
    """The name of an instruction set whose library is there and runs here."""
    return str(request.param)


@pytest.fixture(scope="session")
def native(isa: str) -> CDLL:
    """The library for `isa`, with what `sample_api.h` declares for tests."""
    return open_library(LIBRARIES[isa])

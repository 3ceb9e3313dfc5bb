"""The compiled libraries, one for every instruction set that this machine runs."""

from __future__ import annotations

from ctypes import CDLL
from typing import Any

import pytest

from ssd_kernels.cpu.library import library_folder, open_library, usable_libraries

LIBRARIES = usable_libraries(library_folder())


def named() -> list[Any]:
    """The libraries' names, or one that is skipped and says why."""
    without = pytest.mark.skip(reason="the native library was not compiled: there was no compiler")
    return [*LIBRARIES] or [pytest.param("", marks=without)]


@pytest.fixture(scope="session", params=named())
def isa(request: pytest.FixtureRequest) -> str:
    """The name of an instruction set whose library is there and runs here."""
    return str(request.param)


@pytest.fixture(scope="session")
def native(isa: str) -> CDLL:
    """The library for `isa`, with what `sample_api.h` declares for tests."""
    return open_library(LIBRARIES[isa])

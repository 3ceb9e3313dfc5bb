"""Which library serves, and who is told: by the machine, by `SSD_CPU_KERNELS`, or none at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ssd_kernels.cpu.library import (
    VARIABLE,
    choice,
    library_folder,
    native_library,
    open_library,
    usable_libraries,
)
from ssd_runtime.cli.main import main
from ssd_runtime.errors import ConfigError
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.settings.load import load_settings
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.toy import toy_decoder


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """What this machine runs; nothing is asked for by name."""
    libraries = usable_libraries(library_folder())
    monkeypatch.setenv(VARIABLE, f"{library_folder()}/")
    if not libraries:
        pytest.skip("the native library was not compiled: there was no compiler")
    return libraries


def test_the_best_that_fits_serves(usable: dict[str, Path]) -> None:
    """Its name is what the library says of itself."""
    library = native_library()
    assert library is not None
    assert choice().name == library.ssd_isa().decode() == list(usable)[-1]


def test_each_that_fits_can_be_asked_for(usable: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, among the installed ones or in a folder."""
    for isa, file in usable.items():
        monkeypatch.setenv(VARIABLE, str(file.parent / isa))
        library = native_library()
        assert library is not None
        assert library.ssd_isa().decode() == isa


def test_torch_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no matrix is native, and the decoder does not draw."""
    monkeypatch.setenv(VARIABLE, "torch")
    assert (choice().name, choice().is_wrong) == ("torch", False)
    assert native_library() is None
    assert not toy_decoder(1, quantizer=Float32Quantizer()).decoder.can_draw


def test_without_a_compiler_torch_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation that compiled nothing works, and says what is missing where."""
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/")
    assert (choice().name, choice().is_wrong) == ("torch", False)
    assert choice().reason == f"no native library was built in {tmp_path}"


def test_a_library_that_cannot_be_loaded_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another system, or half a file, is named with the loader's reason."""
    (tmp_path / "libssd_portable.so").write_text("half a file")
    monkeypatch.setenv(VARIABLE, f"{tmp_path}/")
    assert choice().name == "torch"
    assert "cannot be loaded: " in choice().reason
    assert "libssd_portable.so" in choice().reason


def test_a_library_of_other_sources_is_none(usable: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structs might be others: after an update without a new installation memory would be damaged."""
    monkeypatch.setattr("ssd_kernels.cpu.library.interface", lambda: "other")
    open_library.cache_clear()
    try:
        assert choice().name == "torch"
        assert "was compiled from other sources; install again" in choice().reason
    finally:
        open_library.cache_clear()


async def test_what_does_not_run_here_is_refused(
    usable: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is unknown or belongs to another machine stops the start, and says what there is."""
    monkeypatch.setenv(VARIABLE, f"{library_folder()}/avx3")
    with pytest.raises(ConfigError, match=rf"{VARIABLE}: 'avx3' is not there .* there is: .*, torch"):
        async with toy_engine():
            pass


@pytest.mark.parametrize("name", ["portable", "torch"])
def test_check_names_the_kernels(
    name: str, usable: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`ssd-run check` says which library would serve, or why none would."""
    monkeypatch.setenv(VARIABLE, f"{library_folder()}/{name}")
    with pytest.raises(SystemExit):
        main(["check", "--set", "engine.model=owner/name"])
    because = f": {VARIABLE} says so" if name == "torch" else ""
    assert f"\ncpu kernels    {name}{because}\n" in capsys.readouterr().out


def test_the_variable_is_no_setting() -> None:
    """Settings come from variables that begin alike; this one is not taken for a misspelt key."""
    load_settings(None, [], {VARIABLE: "portable"})


@pytest.mark.parametrize("name", ["portable", "torch"])
async def test_an_engine_says_once_what_serves(
    name: str, usable: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, with the reason where it is not the library."""
    monkeypatch.setenv(VARIABLE, f"{library_folder()}/{name}")
    with capture_logs() as logs:
        async with toy_engine():
            pass
    lines = [line for line in logs if "cpu_kernels" in line]
    assert [line["cpu_kernels"] for line in lines] == [name]
    assert ("reason" in lines[0]) == (name == "torch")

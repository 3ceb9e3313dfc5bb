"""The plugin guide, followed to the letter, yields a package that works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "plugin-guide.md"
FILE = re.compile(r"`([\w./-]+)`:\n\n```\w+\n(.*?)```", re.DOTALL)
USE = """
from ssd_runtime.hooks.manager import PluginManager
manager = PluginManager()
manager.load()
assert "again" in manager.names(), manager.names()
print(list(manager.registries.proposers.get("again")().propose([5, 6, 7, 5], 2)))
"""


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    """The guide's files by name."""
    return dict(FILE.findall(GUIDE.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def environment(files: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the guide's package is installed, without network."""
    pytest.importorskip("hatchling", reason="building a package offline needs hatchling")
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text, encoding="utf-8")
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    install = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(source)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return {**os.environ, "PYTHONPATH": str(site), "TEST_FILE": str(source / "test_again.py")}


def test_package_has_fewer_than_thirty_lines(files: dict[str, str]) -> None:
    """Project file and module together, blank lines not counted."""
    package = files["pyproject.toml"] + files["ssd_again/__init__.py"]
    assert len([line for line in package.splitlines() if line.strip()]) < 30


def test_installed_package_is_found_and_proposes(environment: dict[str, str]) -> None:
    """The plugin manager finds the entry point, and the registered factory makes the proposer."""
    done = subprocess.run([sys.executable, "-c", USE], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[6, 7]\n"), done.stderr


def test_the_guides_configuration_starts_with_the_package(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """Where it is installed `check` has nothing against it; elsewhere it names what is missing."""
    configuration = re.search(r"```yaml\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert configuration is not None
    (tmp_path / "engine.yaml").write_text(configuration[1], encoding="utf-8")
    program = "from ssd_runtime.cli.main import main; main()"
    command = [sys.executable, "-c", program, "check", "--config", "engine.yaml"]
    installed, missing = (
        subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
        for env in (environment, os.environ)
    )
    assert installed.returncode == 0, installed.stderr
    assert "again" in dict(line.split(maxsplit=1) for line in installed.stdout.splitlines())["plugins"]
    assert (missing.returncode, missing.stderr.partition(";")[0]) == (
        2,
        "ssd-run: engine.yaml:2 engine.fallback: 'again' is not available",
    )


def test_guides_own_tests_pass(environment: dict[str, str]) -> None:
    """The test file of the guide runs as it stands."""
    file = environment["TEST_FILE"]
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(Path(file).parent), file]
    done = subprocess.run(command, env=environment, cwd=Path(file).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout

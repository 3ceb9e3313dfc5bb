"""An installation where nothing can be compiled: a whole package, served by PyTorch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS, FILES = (
    ("ssd_runtime", "plugins", "kernels", "config"),
    ("pyproject.toml", "hatch_build.py", "README.md"),
)
ANSWERS = """
import asyncio
import structlog
from ssd_kernels.cpu.library import FOLDER, choice
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Request, SamplingParams
structlog.configure(processors=[structlog.processors.KeyValueRenderer()])

async def main():
    async with toy_engine() as engine:
        answer = await engine.complete(Request("0", prompt="Why?", params=SamplingParams(max_tokens=5)))
    assert answer.token_ids
    print("lane", choice().name, FOLDER)

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_installation_without_a_compiler_works(tmp_path: Path) -> None:
    """`pip install` succeeds with a compiler that fails, and one log line says who serves and why."""
    sources, target = tmp_path / "sources", tmp_path / "installed"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, sources / name)
    for name in FILES:
        shutil.copy(ROOT / name, sources)
    environment = {**os.environ, "CC": "/bin/false", "CXX": "/bin/false", "SSD_CPU_KERNELS": ""}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(sources)], env=environment, check=True)
    assert not list(target.rglob("*.so"))
    said = subprocess.run(
        [sys.executable, "-c", ANSWERS],
        env=environment | {"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    folder = target / "ssd_kernels" / "cpu" / "lib"
    assert f"lane torch {folder}\n" in said
    assert said.count("cpu_kernels='torch'") == 1
    assert f"reason='no native library was built in {folder}'" in said

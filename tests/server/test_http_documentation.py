"""Every block of docs/http.md is executed, against a daemon on a toy model or the embedded one."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "http.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)
ADDRESS = "127.0.0.1:8000"
RUN = {"sh": ["sh", "-euc"], "python": [sys.executable, "-c"]}
DRIVER = """
import asyncio, sys
from ssd_runtime.cli.options import configure_logging
from ssd_runtime.server.run import open_door, serve
from ssd_runtime.server.service import Service
from ssd_runtime.settings.load import load_settings

settings = load_settings(None, ["server.port=0"], environ={}).settings
configure_logging(settings.log)
service = Service(settings)
door = open_door(service)
print(door.listener.getsockname()[1], flush=True)
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.testing.toy import toy_decoder

models = {"toy/target": toy_decoder(1, vocab=96)}  # with braces, for the JSON example
sys.exit(asyncio.run(serve(service, lambda service: toy_engine(models=models), door)))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where a daemon listens; it is not ready yet."""
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as daemon:
        assert daemon.stdout is not None
        yield f"127.0.0.1:{int(daemon.stdout.readline())}"
        daemon.kill()


def test_there_are_blocks_to_execute() -> None:
    """Of both kinds, and all of kinds that can be executed."""
    assert {language for language, _ in BLOCKS} == set(RUN)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_works(number: int, address: str) -> None:
    """It ends with status 0 and shows something; the first block is the one that waits."""
    for language, block in [BLOCKS[0], BLOCKS[number]]:
        assert ADDRESS in block
        command = [*RUN[language], block.replace(ADDRESS, address)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout

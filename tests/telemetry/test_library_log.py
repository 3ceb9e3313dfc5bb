"""What a program that embeds the engine gets to read: where answers go there is nothing else."""

from __future__ import annotations

import pytest
import structlog
from structlog.testing import LogCapture

from ssd_runtime.testing.engines import toy_engine


async def speak() -> None:
    """What an engine's modules do, from inside its life."""
    async with toy_engine("scheduler.policy=autoregressive"):
        structlog.get_logger("a module").debug("a detail")
        structlog.get_logger("a module").warning("a warning")


async def test_where_nothing_is_configured_stdout_stays_empty(capsys: pytest.CaptureFixture[str]) -> None:
    """The level is the configuration's, `info`."""
    await speak()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "a warning" in printed.err
    assert "a detail" not in printed.err


async def test_what_the_program_has_configured_stays(capsys: pytest.CaptureFixture[str]) -> None:
    """Processors, level and all."""
    mine = LogCapture()
    structlog.configure(processors=[mine])
    await speak()
    assert {"a detail", "a warning"} <= {entry["event"] for entry in mine.entries}
    assert capsys.readouterr() == ("", "")

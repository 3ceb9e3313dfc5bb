"""The examples below each command's `--help` are command lines that parse."""

from __future__ import annotations

import re
import shlex

import pytest
import typer

from ssd_runtime.cli import examples
from ssd_runtime.cli.main import app, main

COMMANDS = ("", "pipe", "chat", "bench", "check", "config show", "config schema", "plugins", "version")
LINES = [line for group in examples.EVERY for line in group]


def help_of(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_ends_with_examples_of_the_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they were written, a line each, each with the command in it."""
    _, _, shown = help_of(command, capsys).partition("\n  Examples:\n")
    group = examples.EVERY[COMMANDS.index(command)]
    assert [line.strip() for line in shown.splitlines()] == list(group)
    assert all(f"ssd-run {command}".strip() in line for line in group)


def _inside(group: object) -> dict[str, object]:
    return dict(vars(group)["commands"])


def test_no_command_is_without_examples() -> None:
    """A new command brings its own."""
    commands = _inside(typer.main.get_command(app))
    names = [name for name in commands if name != "config"]
    names += [f"config {name}" for name in _inside(commands["config"])]
    assert sorted(names) == sorted(COMMANDS[1:])


@pytest.mark.parametrize("line", LINES)
def test_an_example_parses(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every option exists and takes its value; `--help` behind it keeps it from being run."""
    words = shlex.split(re.sub(r"[<>] \S+", "", line.rpartition("|")[2]), comments=True)
    assert words[0] == "ssd-run"
    with pytest.raises(SystemExit) as end:
        main([*words[1:], "--help"])
    assert end.value.code == 0, capsys.readouterr().err

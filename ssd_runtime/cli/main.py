"""`ssd-run`: the commands, and what an error means for the exit status.

stdout carries answers only. Exit status: 0 fine, 1 some request failed, 2 bad usage or
configuration, 130 interrupted.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import typer

from ssd_runtime.cli import check, examples, inspect, serve
from ssd_runtime.cli.aliases import ALIASES
from ssd_runtime.cli.bench import bench
from ssd_runtime.cli.chat import chat
from ssd_runtime.cli.command import CommandGroup, OptionsCommand
from ssd_runtime.cli.familiar import translated
from ssd_runtime.cli.options import ConfigOption, ModeOption, SetOption, TraceOption, load
from ssd_runtime.cli.pipe import pipe
from ssd_runtime.errors import ConfigError, ModelError, PluginError, SSDError

BAD_START = (ConfigError, ModelError, PluginError)
SHARED_OPTIONS = ("--config", "--set", "--mode", "--trace")

app = typer.Typer(
    name="ssd-run",
    cls=CommandGroup,
    help="Speculative speculative decoding: a large language model answers faster, and exactly as before.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=examples.epilog(examples.DAEMON),
)
app.command(cls=OptionsCommand, epilog=examples.epilog(examples.PIPE))(pipe)
app.command(cls=OptionsCommand, epilog=examples.epilog(examples.CHAT))(chat)
app.command(cls=OptionsCommand, epilog=examples.epilog(examples.BENCH))(bench)
check.register(app)
inspect.register(app)


@app.callback(invoke_without_command=True)
def daemon(
    context: typer.Context,
    config: ConfigOption = None,
    overrides: SetOption = None,
    mode: ModeOption = None,
    trace: TraceOption = None,
) -> None:
    """Without a command: check the configuration and serve it."""
    if context.invoked_subcommand is None:
        raise typer.Exit(serve.daemon(load(config, overrides, mode), trace))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command line and exit with its status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(_command_first(_ours(given)))
    except SSDError as error:
        for line in str(error).split("\n"):
            typer.echo(f"ssd-run: {line}", err=True)
        sys.exit(2 if isinstance(error, BAD_START) else 1)


def _ours(arguments: list[str]) -> list[str]:
    """`arguments` with the options of other engines replaced by ours, which stderr tells."""
    own = translated(arguments, ALIASES, valued_options())
    if told := [argument for argument in own if argument not in (*arguments, "--set")]:
        typer.echo(f"ssd-run: read as --set {' --set '.join(map(shlex.quote, told))}", err=True)
    return own


def valued_options() -> frozenset[str]:
    """The names of our options that take a value."""
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    options = [option for command in commands for option in command.params]
    return frozenset(
        name for option in options if not getattr(option, "is_flag", False) for name in option.opts
    )


def _command_first(arguments: list[str]) -> list[str]:
    """Move shared options behind the command: `--config F -` becomes `pipe --config F`."""
    end = 0
    while end < len(arguments) and arguments[end].partition("=")[0] in SHARED_OPTIONS:
        end += 1 if "=" in arguments[end] else 2
    options, rest = arguments[:end], arguments[end:]
    if not rest or rest[0].startswith("--"):
        return arguments
    words = 2 if rest[0] == "config" else 1
    command = ["pipe"] if rest[0] == "-" else rest[:words]
    return [*command, *options, *rest[words:]]

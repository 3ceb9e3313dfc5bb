"""Commands that look and tell: `config show`, `config schema`, `plugins`, `version`."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

import typer

from ssd_runtime import __version__
from ssd_runtime.cli import examples
from ssd_runtime.cli.command import OptionsCommand
from ssd_runtime.cli.options import ConfigOption, ModeOption, SetOption, load
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.show import as_yaml

config_app = typer.Typer(help="Show the configuration.", no_args_is_help=True, rich_markup_mode=None)


def register(app: typer.Typer) -> None:
    """Add the commands of this module to `app`."""
    app.add_typer(config_app, name="config")
    app.command(cls=OptionsCommand, epilog=examples.epilog(examples.PLUGINS))(plugins)
    app.command(cls=OptionsCommand, epilog=examples.epilog(examples.VERSION))(version)


@config_app.command(cls=OptionsCommand, epilog=examples.epilog(examples.SHOW))
def show(config: ConfigOption = None, overrides: SetOption = None, mode: ModeOption = None) -> None:
    """Print the effective values, and where each came from."""
    typer.echo(as_yaml(load(config, overrides, mode)), nl=False)


@config_app.command(cls=OptionsCommand, epilog=examples.epilog(examples.SCHEMA))
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    typer.echo(json.dumps(Settings.model_json_schema(), indent=2))


def plugins(config: ConfigOption = None, overrides: SetOption = None, mode: ModeOption = None) -> None:
    """List the plugins, and the parts of each kind."""
    manager = PluginManager()
    manager.load(load(config, overrides, mode).settings.plugins)
    typer.echo(f"plugins: {', '.join(manager.names())}")
    for kind, registry in manager.registries.by_kind():
        typer.echo(f"{kind.replace('_', ' ')}: {', '.join(registry.names()) or 'none'}")


def version() -> None:
    """Print the versions of ssd_runtime and of what it computes with."""
    typer.echo(f"ssd_runtime {__version__}")
    typer.echo(f"python {platform.python_version()}")
    for package in ("torch", "transformers", "gguf"):
        typer.echo(f"{package} {_version_of(package)}")


def _version_of(package: str) -> str:
    try:
        return installed(package)
    except PackageNotFoundError:
        return "not installed"

"""The options that every command shares, and how they become settings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.load import Loaded, load_settings
from ssd_runtime.settings.schema import Settings
from ssd_runtime.telemetry.log import configure_logging
from ssd_runtime.types import Mode

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration in YAML. Default: built in.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one key, for example engine.max_batch_size=4."),
]
ModeOption = Annotated[
    Mode | None, typer.Option("--mode", help="How rounds are run; the same as --set scheduler.policy=…")
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="FILE", help="Write Chrome trace events to FILE.")
]


def load(config: Path | None, overrides: Sequence[str] | None, mode: Mode | None = None) -> Loaded:
    """The settings that a command line asks for, and logging set up as they say; raises ConfigError."""
    chosen = [f"scheduler.policy={mode.value}"] if mode else []
    given = [*(overrides or ()), *chosen]
    try:
        loaded = load_settings(config, given)
    except ConfigError as error:
        raise type(error)("\n".join([str(error), *_hints(given)])) from None
    configure_logging(loaded.settings.log)
    return loaded


def _hints(overrides: Sequence[str]) -> Iterator[str]:
    """How to write the overrides that name a key without its section."""
    sections = {
        name: getattr(found.annotation, "model_fields", ()) for name, found in Settings.model_fields.items()
    }
    for override in overrides:
        key = override.partition("=")[0]
        inside = [f"{name}.{key}" for name, keys in sections.items() if key in keys]
        if key not in sections and inside:
            yield f"--set {key}: did you mean {' or '.join(inside)}?"

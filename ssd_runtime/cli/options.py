"""The options that every command shares, and how they become settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ssd_runtime.settings.load import Loaded, load_settings
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
    loaded = load_settings(config, [*(overrides or ()), *chosen])
    configure_logging(loaded.settings.log)
    return loaded

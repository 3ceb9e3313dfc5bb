"""The sampling options of `pipe` and `chat`, checked by the rules that requests obey."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ssd_runtime.errors import ConfigError, RequestError
from ssd_runtime.settings.request import default_params, parse_params
from ssd_runtime.settings.schema import Settings
from ssd_runtime.types import SamplingParams

MaxTokensOption = Annotated[int | None, typer.Option("--max-tokens", help="Most tokens of an answer.")]
TemperatureOption = Annotated[float | None, typer.Option("--temperature", help="0 is greedy.")]
TopPOption = Annotated[float | None, typer.Option("--top-p", help="Keep the likeliest; 1 is off.")]
TopKOption = Annotated[int | None, typer.Option("--top-k", help="Keep the k likeliest; 0 is off.")]
MinPOption = Annotated[float | None, typer.Option("--min-p", help="Keep what is likely enough; 0 is off.")]
StopOption = Annotated[
    list[str] | None, typer.Option("--stop", metavar="TEXT", help="End at TEXT; may be repeated.")
]
IgnoreEosOption = Annotated[bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")]
SeedOption = Annotated[
    int | None,
    typer.Option("--seed", help="Same seed, same answers. Line i gets one derived from (seed, i)."),
]


def sampling(settings: Settings, **given: Any) -> SamplingParams:
    """The settings' defaults with the command line's options over them; raises `ConfigError`."""
    try:
        return parse_params(given, default_params(settings.engine))
    except RequestError as error:
        name, text = (error.param or "").partition(".")[0], str(error).partition(":")[2]
        raise ConfigError(f"--{name.replace('_', '-')}:{text}") from error

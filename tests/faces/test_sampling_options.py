"""The sampling options of the command line obey the rules of requests."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.cli.sampling import sampling
from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.schema import EngineSettings, Settings
from ssd_runtime.types import SamplingParams


def test_options_stand_over_the_settings() -> None:
    """What is not given on the command line is the configuration's."""
    settings = Settings(engine=EngineSettings(temperature=0.3, top_p=0.5))
    assert sampling(settings, temperature=None, top_k=4, stop=["x"]) == SamplingParams(
        temperature=0.3, top_p=0.5, top_k=4, stop=("x",)
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1.0}, "--temperature: got -1.0, expected a number from 0"),
        ({"temperature": float("nan")}, "--temperature: got nan, expected a number from 0"),
        ({"max_tokens": 0}, "--max-tokens: got 0, expected an integer, at least 1"),
        ({"stop": ["a", ""]}, "--stop: got '', expected a text or a list"),
    ],
)
def test_a_wrong_option_is_named_as_it_was_written(given: dict[str, Any], message: str) -> None:
    """It is a mistake of the command line: status 2, before anything is loaded."""
    with pytest.raises(ConfigError) as caught:
        sampling(Settings(), **given)
    assert str(caught.value).startswith(message)

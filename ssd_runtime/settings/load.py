"""Settings from a file, the environment and the command line, and where each value came from.

pydantic-settings merges the sources below, pydantic says what is wrong with a value, and this module
adds where it stands. The first source counts most: `--set` > `SSD_…` > file > defaults.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_settings import InitSettingsSource

from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.messages import NOT_SETTINGS, PREFIX, describe
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.yaml_positions import Document, read

DEFAULT = "default"
SECTIONS = {name for name, field in Settings.model_fields.items() if isinstance(field.default, BaseModel)}

Given = tuple[str, Any, str]
"""A dotted key, its value, and its origin."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, and for each dotted key that was given, by whom.

    An origin is `file:line`, `SSD_NAME` or `--set key`; a key that is missing has its default. path,
    overrides, environ: what `load_settings` was given.
    """

    settings: Settings
    origins: Mapping[str, str]
    path: Path | None = None
    overrides: tuple[str, ...] = ()
    environ: Mapping[str, str] | None = None

    def again(self) -> Loaded:
        """What the same file, overrides and environment say now; raises as `load_settings` does."""
        return load_settings(self.path, self.overrides, self.environ)

    def origin(self, key: str) -> str:
        """Who gave `key`, else who gave the mapping it stands in, else a key inside it."""
        inside = next((name for name in self.origins if name.startswith(f"{key}.")), "")
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key or inside, DEFAULT)

    def where(self, key: str) -> str:
        """`key` with its origin, as messages begin."""
        origin = self.origin(key)
        return origin if origin == f"--set {key}" else f"{origin} {key}"


def load_settings(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Load and check the settings.

    `overrides` are `key=value` texts, the values in YAML. `environ` is the process's own when left
    out. Raises ConfigError with one line for each thing that is wrong.
    """
    origins: dict[str, str] = {}
    sources = (
        _CommandLine(overrides, origins),
        _Environment(os.environ if environ is None else environ, origins),
        _File(path, origins),
    )
    try:
        settings = Settings(_build_sources=(sources, {}))
    except ValidationError as error:
        lookup = Loaded(Settings(), origins)
        lines = [f"{lookup.where(key)}: {text}" for key, text in describe(error, lookup.origin)]
        raise ConfigError("\n".join(lines)) from None
    return Loaded(settings, origins, path, tuple(overrides), environ)


class _Source(InitSettingsSource):
    """What one origin gives, less what an earlier source gave whole: mappings are not mixed then."""

    def __init__(self, origin: Any, origins: dict[str, str]) -> None:
        tree: dict[str, Any] = {}
        own: dict[str, str] = {}
        for key, value, by in self.given(origin):
            if not any(f"{key}.".startswith(f"{earlier}.") for earlier in origins):
                _put(tree, key, value)
                for inside in [name for name in own if name.startswith(f"{key}.")]:
                    del own[inside]
                own[key] = by
        origins.update(own)
        super().__init__(Settings, tree)

    @abstractmethod
    def given(self, origin: Any) -> Iterator[Given]:
        """The values in the order of their weight, the least first."""


class _CommandLine(_Source):
    def given(self, origin: Sequence[str]) -> Iterator[Given]:
        for text in origin:
            key, equals, value = text.partition("=")
            if not (key and equals):
                raise ConfigError(
                    f"--set {text}: expected key=value, for example --set engine.max_batch_size=4"
                )
            yield _canonical(key), _value(value), f"--set {key}"


class _Environment(_Source):
    def given(self, origin: Mapping[str, str]) -> Iterator[Given]:
        for name, text in sorted(origin.items()):
            if name.startswith(PREFIX) and name not in NOT_SETTINGS:
                key = name.removeprefix(PREFIX).lower().replace("__", ".")
                yield _canonical(key), _value(text), name


class _File(_Source):
    def given(self, origin: Path | None) -> Iterator[Given]:
        document = read(origin) if origin else Document({}, {})
        seen: dict[str, int] = {}
        for key, value in _leaves(document.data):
            line, name = document.line(key), _canonical(key)
            if name in seen:
                raise ConfigError(f"{origin}:{line} {key}: the same as {name} on line {seen[name]}; keep one")
            seen[name] = line
            yield name, value, f"{origin}:{line}"


def _leaves(data: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """The values of the sections' own keys; a section that stands empty gives nothing."""
    for name, value in data.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        elif not (name in SECTIONS and value is None):
            yield str(name), value


def _canonical(key: str) -> str:
    return "engine.model" if key == "engine.target_model" else key


def _value(text: str) -> Any:
    """`text` read as YAML, or as it stands where it is none (a Windows path, an e-mail address)."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    *parents, name = key.split(".")
    for parent in parents:
        if not isinstance(tree.get(parent), dict):
            tree[parent] = {}
        tree = tree[parent]
    tree[name] = value

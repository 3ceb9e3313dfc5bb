"""Settings from a file, the environment and the command line, and where each value came from.

pydantic says what is wrong with a value; this module adds where it stands (`messages.py` puts the
two together). What is given later wins: defaults < file < `SSD_…` < `--set`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from ssd_runtime.errors import ConfigError
from ssd_runtime.settings.messages import describe, field_at
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.yaml_positions import parse

PREFIX = "SSD_"
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Loaded:
    """Checked settings, and for each dotted key that was given, by whom.

    An origin is `file:line`, `SSD_NAME` or `--set key`; a key that is missing has its default.
    """

    settings: Settings
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        """Who gave `key`, else who gave the mapping it stands in, else a key inside it."""
        inside = next((name for name in self.origins if name.startswith(f"{key}.")), "")
        while key and key not in self.origins:
            key = key.rpartition(".")[0]
        return self.origins.get(key or inside, DEFAULT)

    def where(self, key: str) -> str:
        """`key` with its origin, as messages begin."""
        return _where(self.origin(key), key)


@dataclass(frozen=True, slots=True)
class _Given:
    key: str
    value: Any
    origin: str


def load_settings(
    path: Path | None, overrides: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> Loaded:
    """Load and check the settings.

    `overrides` are `key=value` texts, the values in YAML. `environ` is the process's own when left
    out. Raises ConfigError with one line for each thing that is wrong.
    """
    given = [
        *(_from_file(path) if path else ()),
        *_from_environment(os.environ if environ is None else environ),
        *map(_from_override, overrides),
    ]
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for item in given:
        _put(tree, item)
        origins = {key: value for key, value in origins.items() if not key.startswith(f"{item.key}.")}
        origins[item.key] = item.origin
    return _validated(tree, origins)


def _validated(tree: dict[str, Any], origins: dict[str, str]) -> Loaded:
    try:
        return Loaded(Settings.model_validate(tree), origins)
    except ValidationError as error:
        lookup = Loaded(Settings(), origins)
        lines = [f"{lookup.where(key)}: {text}" for key, text in map(describe, error.errors())]
        raise ConfigError("\n".join(lines)) from None


def _from_file(path: Path) -> Iterator[_Given]:
    try:
        document = parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: the configuration cannot be read: {reason}") from error
    if not isinstance(document.data, dict | None):
        raise ConfigError(f"{path}:1 got {document.data!r}, expected sections such as 'engine:'")
    seen: dict[str, int] = {}
    for key, value in _leaves(document.data or {}, ""):
        line, canonical = document.line(key), _canonical(key)
        if canonical in seen:
            raise ConfigError(
                f"{path}:{line} {key}: the same as {canonical} on line {seen[canonical]}; keep one"
            )
        seen[canonical] = line
        yield _Given(canonical, value, f"{path}:{line}")


def _leaves(data: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """The values of the sections' own keys; a section that stands empty gives nothing."""
    for name, value in data.items():
        key = f"{prefix}{name}"
        section = _is_section(key)
        if section and isinstance(value, dict):
            yield from _leaves(value, f"{key}.")
        elif not (section and value is None):
            yield key, value


def _is_section(key: str) -> bool:
    found = field_at(key.split("."))
    annotation = found.annotation if found else None
    return "." not in key and isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _canonical(key: str) -> str:
    return "engine.model" if key == "engine.target_model" else key


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name, text in sorted(environ.items()):
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX).lower().replace("__", ".")
            yield _Given(_canonical(key), _value(text), name)


def _from_override(text: str) -> _Given:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"--set {text}: expected key=value, for example --set engine.max_batch_size=4")
    return _Given(_canonical(key), _value(value), f"--set {key}")


def _value(text: str) -> Any:
    """`text` read as YAML, or as it stands where it is none (a Windows path, an e-mail address)."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _put(tree: dict[str, Any], item: _Given) -> None:
    *parents, name = item.key.split(".")
    for parent in parents:
        if not isinstance(tree.get(parent), dict):
            tree[parent] = {}
        tree = tree[parent]
    tree[name] = item.value


def _where(origin: str, key: str) -> str:
    return origin if origin == f"--set {key}" else f"{origin} {key}"

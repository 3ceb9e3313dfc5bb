"""YAML that remembers where each key stands, and refuses a key that stands twice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ssd_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its mapping, and the line (from 1) of every dotted key."""

    data: dict[Any, Any]
    lines: dict[str, int]

    def line(self, key: str) -> int:
        """The line of `key`; 1 for a key that YAML spells in a way of its own (`on`, a merge)."""
        return self.lines.get(key, 1)


def read(path: Path) -> Document:
    """Parse a file that holds one YAML document, a mapping or nothing.

    Raises ConfigError, with the line where there is one, for anything else and for duplicate keys.
    """
    try:
        data, lines = _parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: the configuration cannot be read: {reason}") from error
    if not isinstance(data, dict | None):
        raise ConfigError(f"{path}:1 got {data!r}, expected sections such as 'engine:'")
    return Document(data or {}, lines)


def _parse(text: str, name: str) -> tuple[Any, dict[str, int]]:
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        lines = _lines(node, name)
        return loader.construct_document(node) if node is not None else None, lines
    except yaml.YAMLError as error:
        raise ConfigError(_not_yaml(error, name)) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply, or an alias that contains itself") from error


def _lines(root: yaml.Node | None, name: str) -> dict[str, int]:
    lines: dict[str, int] = {}
    repeated = []
    for key, line in _walk(root, ""):
        if key in lines:
            repeated.append(f"{name}:{line} {key}: given twice, first on line {lines[key]}; keep one")
        lines.setdefault(key, line)
    if repeated:
        raise ConfigError("\n".join(repeated))
    return lines


def _walk(node: yaml.Node | None, prefix: str) -> Iterator[tuple[str, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        dotted = f"{prefix}{key.value}"
        yield dotted, key.start_mark.line + 1
        yield from _walk(value, f"{dotted}.")


def _not_yaml(error: yaml.YAMLError, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    where = f"{name}:{mark.line + 1}" if mark else name
    return f"{where} is not YAML: {getattr(error, 'problem', None) or error}"

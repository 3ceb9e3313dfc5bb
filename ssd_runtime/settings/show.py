"""Effective settings as YAML, each value with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import yaml
from pydantic import BaseModel, SecretStr

from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.schema import NamedPart, QuantizationByBatch


def as_yaml(loaded: Loaded) -> str:
    """The settings as a file that loads to the same settings, but for secrets; comments give the origins."""
    return "\n".join(_lines(loaded)) + "\n"


def plain(value: object) -> Any:
    """A settings value as it is written in YAML, in its shortest form."""
    if isinstance(value, NamedPart):
        return {"name": value.name, **value.options} if value.options else value.name
    if isinstance(value, QuantizationByBatch):
        return value.small if len(value.names) == 1 else value.model_dump()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, SecretStr):
        return str(value)
    return [plain(each) for each in value] if isinstance(value, tuple) else value


def flow(value: object) -> str:
    """A settings value as YAML on one line."""
    text: str = yaml.safe_dump(plain(value), default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _lines(loaded: Loaded) -> Iterator[str]:
    for name, value in loaded.settings:
        if isinstance(value, BaseModel):
            yield f"{name}:"
            for key, inner in value:
                yield f"  {key}: {flow(inner)}  # {loaded.origin(f'{name}.{key}')}"
        else:
            yield f"{name}: {flow(value)}  # {loaded.origin(name)}"

"""What a configuration that was read again changes, and what of it needs a restart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.show import flow

SPECULATING = frozenset(
    {
        "engine.draft_model",
        "engine.draft_quantization",
        "engine.fallback",
        "engine.sampler",
        "engine.cache_policy",
        "engine.speculative_length",
        "engine.branch_budget",
        "engine.fallback_batch_threshold",
        "scheduler.policy",
    }
)
"""What is said to whatever guesses, all of which is made anew."""
RELOADABLE = SPECULATING | {"engine.temperature", "engine.top_p", "plugins"}
"""What a running engine can follow."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting by its dotted key, and both values as they are written in YAML; secrets are masked."""

    setting: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Difference:
    """What a running engine follows, and what it can only do when it starts again, in the schema's order."""

    changed: tuple[Change, ...] = ()
    needs_restart: tuple[Change, ...] = ()

    def touches(self, settings: frozenset[str]) -> bool:
        """Whether one of `settings` is changed."""
        return any(change.setting in settings for change in self.changed)


def difference(old: Settings, new: Settings) -> Difference:
    """What is not the same in `new`."""
    before = dict(_values(old))
    found = [
        Change(key, flow(before[key]), flow(value)) for key, value in _values(new) if value != before[key]
    ]
    return Difference(
        tuple(change for change in found if change.setting in RELOADABLE),
        tuple(change for change in found if change.setting not in RELOADABLE),
    )


def followed(old: Loaded, new: Loaded) -> Loaded:
    """`new` where a running engine can follow it, `old` elsewhere."""
    tree: dict[str, Any] = {}
    for key, value in _values(new.settings):
        section, _, name = key.rpartition(".")
        if key in RELOADABLE and section:
            tree.setdefault(section, {})[name] = value
        elif key in RELOADABLE:
            tree[name] = value
    update = {
        name: getattr(old.settings, name).model_copy(update=value) if isinstance(value, dict) else value
        for name, value in tree.items()
    }
    return replace(new, settings=old.settings.model_copy(update=update))


def _values(settings: Settings) -> Iterator[tuple[str, Any]]:
    for name, value in settings:
        if isinstance(value, BaseModel):
            yield from ((f"{name}.{key}", inner) for key, inner in value)
        else:
            yield name, value

"""Finds plugins and lets each register its parts. An instance, made by whoever starts an engine."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import pluggy

from ssd_runtime.errors import PluginError
from ssd_runtime.hooks import specs
from ssd_runtime.hooks.registry import Registries

GROUP = "ssd_runtime.plugins"
BUILTIN = "builtin"


class PluginManager:
    """A typed front of pluggy: plugins go in, filled registries come out."""

    def __init__(self) -> None:
        self.registries = Registries()
        self._pluggy = pluggy.PluginManager(specs.PROJECT)
        self._pluggy.add_hookspecs(specs)

    def load(self, modules: Sequence[str] = ()) -> None:
        """Load installed entry points, built-ins first, then `modules`. Raises PluginError."""
        found = entry_points(group=GROUP)
        for entry in sorted(found, key=lambda entry: (entry.name != BUILTIN, entry.name)):
            self.register(_imported(entry.name, entry.load), entry.name)
        for name in modules:
            self.register(_imported(name, partial(importlib.import_module, name)), name)

    def register(self, plugin: object, name: str) -> None:
        """Let one plugin register its parts: all of them, or none and a PluginError."""
        added = Registries()
        try:
            self._pluggy.register(plugin, name)
            self._pluggy.check_pending()
            self._call_hooks(plugin, added)
            self.registries.absorb(added)
        except Exception as error:
            if self._pluggy.get_plugin(name) is plugin:
                self._pluggy.unregister(plugin)
            raise PluginError(f"plugin {name!r} could not be registered: {_reason(error)}") from error

    def names(self) -> tuple[str, ...]:
        """The plugins that were loaded, in that order."""
        return tuple(name for name, plugin in self._pluggy.list_name_plugin() if plugin is not None)

    def _call_hooks(self, plugin: object, registries: Registries) -> None:
        others = [other for other in self._pluggy.get_plugins() if other is not plugin]
        for kind, registry in registries.by_kind():
            call: Any = self._pluggy.subset_hook_caller(f"ssd_register_{kind}", remove_plugins=others)
            call(registry=registry)


def _imported(name: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except Exception as error:
        raise PluginError(f"plugin {name!r} could not be imported: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"

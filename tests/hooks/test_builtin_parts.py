"""The built-in plugin: found by its entry point, and every part that it names can be made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.inventory import check_parts
from ssd_runtime.settings.load import load_settings


@pytest.fixture(scope="module")
def manager() -> PluginManager:
    manager = PluginManager()
    manager.load()
    return manager


def test_the_built_ins_are_found_first(manager: PluginManager) -> None:
    """The entry point `builtin` is installed with the package."""
    assert manager.names()[0] == "builtin"


def test_every_registered_factory_makes_its_part(manager: PluginManager) -> None:
    """No built-in name stands for something that does not exist."""
    for _, registry in manager.registries.by_kind():
        for name in registry.names():
            assert registry.get(name)() is not None


def test_the_default_configuration_names_only_what_exists(manager: PluginManager) -> None:
    """A start without any configuration is possible."""
    check_parts(load_settings(None, environ={}), manager.registries)


def test_first_come_is_first_served(manager: PluginManager) -> None:
    """Arrival decides, whatever the length of the prompt."""
    key = manager.registries.orders.get("fcfs")()
    waiting = [SimpleNamespace(uid=uid, request=None, num_prompt=9 - uid) for uid in (3, 1, 2)]
    assert [item.uid for item in sorted(waiting, key=key)] == [1, 2, 3]

"""Registries and plugins: what is registered, and what happens when a plugin is wrong."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from ssd_runtime.api import Proposer, Registry, hookimpl
from ssd_runtime.errors import NotAvailableError, PluginError
from ssd_runtime.hooks import specs
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.hooks.registry import Registries


class Nothing:
    """A proposer that has no idea."""

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        return ()


class GoodPlugin:
    @hookimpl
    def ssd_register_proposers(self, registry: Registry[Proposer]) -> None:
        registry.register("nothing", Nothing)


class TestRegistry:
    def test_a_factory_is_found_by_its_name(self) -> None:
        """What was registered is what is returned."""
        registry: Registry[Proposer] = Registry("proposer")
        registry.register("nothing", Nothing)
        assert isinstance(registry.get("nothing")(), Nothing)

    def test_an_unknown_name_lists_the_known_ones(self) -> None:
        """The message helps with a typing mistake."""
        registry: Registry[Proposer] = Registry("proposer")
        registry.register("b", Nothing)
        registry.register("a", Nothing)
        with pytest.raises(NotAvailableError, match=r"^proposer 'c' is not available; available: a, b$"):
            registry.get("c")

    def test_a_name_is_taken_once(self) -> None:
        """No plugin replaces a part unnoticed."""
        registry: Registry[Proposer] = Registry("proposer")
        registry.register("a", Nothing)
        with pytest.raises(PluginError, match="proposer 'a' is registered already"):
            registry.register("a", Nothing)


class TestManager:
    def test_a_plugin_registers_its_parts(self) -> None:
        """The plugin's factory arrives in the registry of its kind."""
        manager = PluginManager()
        manager.register(GoodPlugin(), "good")
        assert manager.names() == ("good",)
        assert isinstance(manager.registries.proposers.get("nothing")(), Nothing)

    def test_managers_share_nothing(self) -> None:
        """Two engines in one process have their own parts."""
        first, second = PluginManager(), PluginManager()
        first.register(GoodPlugin(), "good")
        assert second.registries.proposers.names() == ()

    def test_a_plugin_that_raises_leaves_nothing_behind(self) -> None:
        """Parts that it registered before the error are taken out, and it is named."""

        class Raises(GoodPlugin):
            @hookimpl
            def ssd_register_observers(self, registry: object) -> None:
                raise RuntimeError("no licence")

        manager = PluginManager()
        with pytest.raises(
            PluginError, match=r"plugin 'bad' could not be registered: RuntimeError: no licence"
        ):
            manager.register(Raises(), "bad")
        assert manager.names() == ()
        assert manager.registries.proposers.names() == ()
        manager.register(GoodPlugin(), "good")
        assert manager.registries.proposers.names() == ("nothing",)

    def test_a_misspelt_hook_is_an_error(self) -> None:
        """pluggy alone would ignore it."""

        class Misspelt:
            @hookimpl
            def ssd_register_proposer(self, registry: object) -> None: ...

        manager = PluginManager()
        with pytest.raises(PluginError, match=r"plugin 'typo'.*ssd_register_proposer"):
            manager.register(Misspelt(), "typo")
        assert manager.names() == ()

    def test_a_taken_name_refuses_the_whole_second_plugin(self) -> None:
        """The first plugin's part stays, and nothing of the second arrives."""

        class Other(GoodPlugin):
            @hookimpl
            def ssd_register_observers(self, registry: Registry[object]) -> None:
                registry.register("seen", SimpleNamespace)

        manager = PluginManager()
        manager.register(GoodPlugin(), "first")
        with pytest.raises(PluginError, match=r"plugin 'second'.*proposer 'nothing' is registered already"):
            manager.register(Other(), "second")
        assert manager.names() == ("first",)
        assert manager.registries.observers.names() == ()

    def test_the_same_plugin_twice_stays_registered_once(self) -> None:
        """A failed second registration does not undo the first."""
        manager, plugin = PluginManager(), GoodPlugin()
        manager.register(plugin, "good")
        with pytest.raises(PluginError, match="plugin 'again'"):
            manager.register(plugin, "again")
        assert manager.names() == ("good",)

    def test_modules_of_the_configuration_are_loaded_after_entry_points(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`plugins: [module]` needs no installed package."""
        (tmp_path / "my_ssd_plugin.py").write_text(
            "from ssd_runtime.api import hookimpl\n"
            "@hookimpl\n"
            "def ssd_register_proposers(registry):\n"
            "    registry.register('mine', object)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        manager = PluginManager()
        manager.load(["my_ssd_plugin"])
        assert manager.names()[0] == "builtin"
        assert manager.names()[-1] == "my_ssd_plugin"
        assert "mine" in manager.registries.proposers.names()
        monkeypatch.delitem(sys.modules, "my_ssd_plugin")

    def test_a_module_that_cannot_be_imported_is_named(self) -> None:
        """The reason is in the message."""
        with pytest.raises(
            PluginError, match=r"plugin 'no_such_module' could not be imported: ModuleNotFound"
        ):
            PluginManager().load(["no_such_module"])


def test_each_hook_has_a_registry_of_its_name() -> None:
    """A hook without a registry, or a registry without a hook, would be dead."""
    hooks = {name.removeprefix("ssd_register_") for name in vars(specs) if name.startswith("ssd_")}
    assert hooks == {kind for kind, _ in Registries().by_kind()}

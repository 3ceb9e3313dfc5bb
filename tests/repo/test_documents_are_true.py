"""Documents that describe the code are compared with it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from ssd_runtime.hooks import kinds, specs
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.schema import Settings

ROOT = Path(__file__).parents[2]
HOOK_REFERENCE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
HOOKS = sorted(name for name in vars(specs) if name.startswith("ssd_"))


def test_the_default_file_is_the_schemas_defaults() -> None:
    """Both say the same, and the file names every key."""
    loaded = load_settings(ROOT / "config" / "default.yaml", environ={})
    assert loaded.settings == Settings()
    given = set(loaded.origins)
    keys = {
        f"{section}.{key}"
        for section in given_sections()
        for key in getattr(Settings(), section).model_dump()
    }
    assert given == keys | {"plugins"}


def given_sections() -> list[str]:
    return [name for name in Settings.model_fields if name != "plugins"]


@pytest.mark.parametrize("path", sorted((ROOT / "config").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    """None has a key that does not exist or a value out of range."""
    load_settings(path, environ={})


def test_the_configuration_reference_is_up_to_date() -> None:
    """`scripts/generate_config_docs.py` writes it; run it after a change of the schema."""
    command = [sys.executable, "scripts/generate_config_docs.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_is_documented_with_its_arguments(hook: str) -> None:
    """The reference names the hook as it is called."""
    arguments = ", ".join(inspect.signature(getattr(specs, hook)).parameters)
    assert f"`{hook}({arguments})`" in HOOK_REFERENCE


@pytest.mark.parametrize("kind", ["Proposer", "Sampler", "CachePolicy", "Observer", "Waiting"])
def test_every_kind_is_documented_with_its_methods(kind: str) -> None:
    """The reference shows each protocol's methods as they are declared."""
    methods = [
        name for name, value in vars(getattr(kinds, kind)).items() if callable(value) and name[0] != "_"
    ]
    assert all(f"{name}(" in HOOK_REFERENCE for name in methods)

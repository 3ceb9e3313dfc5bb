"""What `import ssd_runtime` offers."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

import ssd_runtime
import ssd_runtime.api

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("module", [ssd_runtime, ssd_runtime.api])
def test_every_exported_name_exists(module: object) -> None:
    """Also those that are imported on first use."""
    names: list[str] = vars(module)["__all__"]
    assert [name for name in names if getattr(module, name, None) is None] == []


@pytest.mark.parametrize("file", ["__init__.py", "api.py"])
def test_exported_names_are_sorted(file: str) -> None:
    """Constants, then classes, then the rest, as ruff sorts them."""
    tree = ast.parse((ROOT / "ssd_runtime" / file).read_text(encoding="utf-8"))
    listed = next(ast.literal_eval(node.value) for node in tree.body if _assigns(node, "__all__"))  # type: ignore[attr-defined]
    assert listed == sorted(listed, key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name


@pytest.mark.parametrize("module", [ssd_runtime, ssd_runtime.api])
def test_an_unknown_name_is_an_attribute_error(module: object) -> None:
    """Lazy exports must not break `hasattr`."""
    assert not hasattr(module, "no_such_name")


def test_one_version_everywhere() -> None:
    """The package, its metadata and the changelog agree."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == ssd_runtime.__version__
    assert f"## [{ssd_runtime.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

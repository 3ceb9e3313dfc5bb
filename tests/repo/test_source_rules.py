"""Rules of the house that no linter checks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for root in ("ssd_runtime", "plugins", "kernels") for path in (ROOT / root).rglob("*.py")
)
EACH_SOURCE = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
FILE_LINES = 300
FUNCTION_LINES = 60

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Definition]]:
    for node in body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


def is_stub(node: Definition) -> bool:
    """A protocol's method whose name and types say everything: its body is `...`."""
    return len(node.body) == 1 and ast.unparse(node.body[0]) == "..."


@EACH_SOURCE
def test_everything_public_has_a_docstring(path: Path) -> None:
    """Modules, classes, functions and methods."""
    tree = parsed(path)
    bare = [
        name
        for name, node in public_definitions(tree.body)
        if not ast.get_docstring(node) and not is_stub(node)
    ]
    assert ast.get_docstring(tree), "the module has no docstring"
    assert bare == []


@EACH_SOURCE
def test_files_and_functions_are_small(path: Path) -> None:
    """A file fits the head, a function fits the screen."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= FILE_LINES
    functions = [
        node for node in ast.walk(parsed(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES]
    assert long == []


@EACH_SOURCE
def test_nothing_is_printed(path: Path) -> None:
    """stdout carries answers only; the command line writes them with typer's echo or the stream itself."""
    calls = [node.func for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"] == []


@EACH_SOURCE
def test_only_device_code_names_cuda(path: Path) -> None:
    """Devices are objects that are handed in: `.cuda()` and `torch.cuda` stay in device/ and kernels/."""
    if path.is_relative_to(ROOT / "kernels") or path.is_relative_to(ROOT / "ssd_runtime" / "device"):
        return
    named = [
        node.lineno
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr == "cuda"
    ]
    assert named == []


@pytest.mark.parametrize("root", ["plugins", "kernels"])
def test_source_roots_are_no_packages(root: str) -> None:
    """A top-level package called `kernels` would shadow a well-known one."""
    assert not (ROOT / root / "__init__.py").exists()


def test_test_modules_have_unique_names() -> None:
    """Without `__init__.py` files pytest needs unique names."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_every_test_says_what_it_proves(path: Path) -> None:
    """The docstrings of the tests are the specification."""
    silent = [
        name
        for name, node in public_definitions(parsed(path).body)
        if name.rpartition(".")[2].startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []

"""The layers of docs/architecture.md: an import points to a lower layer, never sideways or up."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = [
    {"", "errors", "types", "clock", "messages", "stats"},
    {"settings", "hooks", "snapshots"},
    {"ssd_kernels"},
    {"sampling"},
    {"device", "memory", "sequence"},
    {"models"},
    {"speculation"},
    {"engine"},
    {"api", "faces", "telemetry"},
    {"app", "bench", "server"},
    {"cli", "testing"},
]
COMPOSITION_ROOT = {
    "app",
    "build",
    "capacity",
    "drafts",
    "inventory",
    "llm",
    "parts",
    "reload",
    "roles",
    "sources",
    "speculations",
}
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}


def runtime_imports(node: ast.AST) -> Iterator[str]:
    """Modules that `node` imports when it runs: those under TYPE_CHECKING only name types."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children: list[ast.stmt] = node.orelse
    else:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""
        children = list(ast.iter_child_nodes(node))  # type: ignore[arg-type]  # statements and more
    for child in children:
        yield from runtime_imports(child)


def part_of(module: str) -> str:
    """The part of the project that a module belongs to: `engine` for `ssd_runtime.engine.core`."""
    first, *rest = module.split(".")
    part = (rest[0] if rest else "") if first == "ssd_runtime" else first
    return "app" if part in COMPOSITION_ROOT else part


def modules(root: str) -> list[Path]:
    return sorted((ROOT / root).rglob("*.py"))


def own_imports(path: Path) -> set[str]:
    found = runtime_imports(ast.parse(path.read_text(encoding="utf-8")))
    return {name for name in found if name.split(".")[0] in {"ssd_runtime", "ssd_kernels", "ssd_plugins"}}


@pytest.mark.parametrize(
    "path", modules("ssd_runtime") + modules("kernels"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_an_import_points_to_a_lower_layer(path: Path) -> None:
    """Within a part everything goes; the package's own `__init__` exports lazily and is exempt."""
    relative = path.relative_to(ROOT).with_suffix("")
    name = ".".join(relative.parts[1:] if relative.parts[0] == "kernels" else relative.parts)
    part = part_of(name.removesuffix(".__init__"))
    if part == "":
        return
    assert part in LEVEL, f"{part} has no layer yet"
    wrong = {
        module
        for module in own_imports(path)
        if part_of(module) != part and LEVEL.get(part_of(module), len(LAYERS)) >= LEVEL[part]
    }
    assert wrong == set()


@pytest.mark.parametrize("path", modules("plugins"), ids=lambda path: path.name)
def test_built_in_plugins_use_only_the_public_api(path: Path) -> None:
    """What the built-ins can do, a third party's plugin can do."""
    outside = {name for name in own_imports(path) if not name.startswith("ssd_plugins")}
    assert outside <= {"ssd_runtime.api"}


def test_the_runtime_never_names_a_plugin() -> None:
    """Plugins are found by entry point or configuration."""
    named = {name for path in modules("ssd_runtime") for name in own_imports(path)}
    assert not any(name.startswith("ssd_plugins") for name in named)

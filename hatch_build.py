"""Compiles the native CPU lane when the package is installed; without a compiler PyTorch serves instead."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARIES = "kernels/ssd_kernels/cpu/lib"


class NativeLane(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the compiled libraries beside their sources, and into the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it collects files."""
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / LIBRARIES
        for stale in folder.glob("libssd_*"):
            stale.unlink()
        recipe = _recipe(Path(self.root))
        try:
            recipe.compile_all(folder)
        except recipe.CompileError as error:
            self.app.display_warning(f"the native CPU lane was not built, PyTorch will serve: {error}")
            return
        build_data["artifacts"].append(f"{LIBRARIES}/*.so")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"


def _recipe(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("compile", root / "kernels/ssd_kernels/cpu/compile.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

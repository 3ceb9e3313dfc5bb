"""Looking at the package, its help or its configuration loads no torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "gguf", "numpy")
COMMAND = """
from ssd_runtime.cli.main import main
try:
    main({})
except SystemExit as end:
    assert not end.code
"""
CHECK = f"""
import sys
loaded = [name for name in {HEAVY} if name in sys.modules]
assert not loaded, loaded
"""


@pytest.mark.parametrize(
    "code",
    [
        "import ssd_runtime",
        "import ssd_runtime.api",
        "import ssd_runtime.server.run",
        "from ssd_runtime.hooks.manager import PluginManager; PluginManager().load()",
        COMMAND.format(["--help"]),
        COMMAND.format(["pipe", "--help"]),
        COMMAND.format(["bench", "--help"]),
        COMMAND.format(["config", "show"]),
        COMMAND.format(["plugins"]),
        COMMAND.format(["version"]),
    ],
)
def test_no_heavy_library_is_loaded(code: str) -> None:
    """In a fresh interpreter, so that nothing is loaded already."""
    program = f"{code}\n{CHECK}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""Write docs/configuration.md from the settings' schema; with --check only say whether it is current."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ssd_runtime.settings.messages import allowed_values
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.show import flow

TARGET = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = """\
# Configuration

Written by `scripts/generate_config_docs.py` from `ssd_runtime/settings/schema.py`.

One YAML file describes everything: `ssd-run --config engine.yaml …`. Every key may be left out.
What comes later wins: defaults, the file, the environment (`SSD_ENGINE__MAX_BATCH_SIZE=4`), the
command line (`--set engine.max_batch_size=4`, on every command). `ssd-run config show` prints the
effective values and where each came from; `ssd-run config schema` prints a JSON schema for editors.
Unknown keys, keys given twice and unknown `SSD_…` variables are errors.
"""


def document() -> str:
    """The whole document."""
    return "\n".join([HEAD, *_sections()]) + "\n"


def _sections() -> Iterator[str]:
    settings = Settings()
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        yield f"## `{name}`\n\n{field.description}\n"
        rows = _rows(value) if isinstance(value, BaseModel) else [_row(name, value, Settings)]
        yield "\n".join(["| Key | Default | Allowed | Meaning |", "|---|---|---|---|", *rows]) + "\n"


def _rows(section: BaseModel) -> list[str]:
    return [_row(key, value, type(section)) for key, value in section]


def _row(key: str, value: Any, model: type[BaseModel]) -> str:
    field = model.model_fields[key]
    default = "" if value is None else f"`{flow(value)}`"
    return f"| `{key}` | {default} | {allowed_values(field)} | {field.description} |"


def main() -> int:
    """Write, or compare; 1 where the document is out of date."""
    if "--check" not in sys.argv[1:]:
        TARGET.write_text(document(), encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == document():
        return 0
    sys.stderr.write("docs/configuration.md is out of date; run scripts/generate_config_docs.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())

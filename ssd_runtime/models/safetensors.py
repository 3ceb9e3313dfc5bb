"""Reading a folder of safetensors files, memory-mapped. Pickled weights are never read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ssd_runtime.errors import ModelError

INDEX = "model.safetensors.index.json"


class SafetensorsFolder(Mapping[str, Tensor]):
    """The weights of a folder by name; each is mapped from its file when it is asked for.

    Raises ModelError when there are no safetensors files, or one is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {path.name: _open(path) for path in weight_files(folder)}
        self._places = {key: name for name, file in self._files.items() for key in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[self._places[name]].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder: those of its index, or all that there are."""
    if (folder / INDEX).exists():
        names = set(read_json(folder / INDEX)["weight_map"].values())
        missing = sorted(name for name in names if not (folder / name).is_file())
        if missing:
            raise ModelError(f"{folder}: {len(missing)} weight files are missing: {', '.join(missing)}")
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(_no_weights(folder))
    return files


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError, naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: has no {path.name}; expected a model folder") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: got {type(content).__name__}, expected a JSON object")
    return content


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path}: not a usable safetensors file: {error}") from error


def _no_weights(folder: Path) -> str:
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if not pickled:
        return f"{folder}: has no *.safetensors files"
    return (
        f"{folder}: has only pickled weights ({pickled[0]}), which can run code when they are read and "
        "are refused; convert them to safetensors"
    )

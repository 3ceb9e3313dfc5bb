"""GGUF → a cached folder of float32 safetensors, made once and complete or not there at all.

Beside them is written where the file's own blocks lie, for quantizers that use those.

A cache entry is a folder named after the source file (path, size, time, format version). It is
written under a temporary name and renamed; a lock lets one process convert while others wait.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from ssd_runtime.errors import ModelError
from ssd_runtime.models.config import DecoderConfig, RopeScaling
from ssd_runtime.models.gguf import GGUFFile
from ssd_runtime.models.gguf_blocks import BlockPlace, StoredWeights
from ssd_runtime.models.loading import Progress
from ssd_runtime.models.safetensors import read_json
from ssd_runtime.models.tokenizer import save_gguf_tokenizer

FORMAT_VERSION = 2
SHARD_BYTES = 1 << 30
_CONFIG = "decoder.json"
_BLOCKS = "blocks.json"


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/ssd_runtime`, by default `~/.cache/ssd_runtime`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssd_runtime"


def converted(path: Path, cache_dir: Path, progress: Progress) -> Path:
    """The cache folder of a GGUF file, converting it if nobody has. Raises ModelError."""
    target = cache_dir / _entry_name(path)
    if target.is_dir():
        return target
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with _locked(target.with_suffix(".lock")):
            if not target.is_dir():
                _convert_into(target, path, progress)
    except (OSError, SafetensorError) as error:
        raise ModelError(_write_error(cache_dir, error)) from error
    return target


def read_config(folder: Path) -> DecoderConfig:
    """The configuration of a cache folder."""
    raw = read_json(folder / _CONFIG)
    rope = raw["rope"]
    rope["frequency_divisors"] = _tuple_or_none(rope["frequency_divisors"])
    raw |= {"rope": RopeScaling(**rope), "windows": tuple(raw["windows"])}
    return DecoderConfig(**raw | {"eos_token_ids": tuple(raw["eos_token_ids"])})


def stored_weights(folder: Path, path: Path) -> StoredWeights:
    """The blocks of the GGUF file `path`, whose cache folder is `folder`."""
    places = read_json(folder / _BLOCKS)
    return StoredWeights(
        path, {name: BlockPlace(**place | {"shape": tuple(place["shape"])}) for name, place in places.items()}
    )


def is_converted(folder: Path) -> bool:
    """Whether a folder is a cache entry rather than a Hugging Face model."""
    return (folder / _CONFIG).is_file()


def _entry_name(path: Path) -> str:
    try:
        resolved = path.resolve(strict=True)
        stat = resolved.stat()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    identity = f"{FORMAT_VERSION}\0{resolved}\0{stat.st_size}\0{stat.st_mtime_ns}"
    return f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _convert_into(target: Path, path: Path, progress: Progress) -> None:
    """Write the entry under another name, then rename it. The caller holds the entry's lock."""
    for abandoned in target.parent.glob(f"{target.name}.tmp-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    temporary = target.with_name(f"{target.name}.tmp-{uuid.uuid4().hex}")
    temporary.mkdir()
    try:
        _write_entry(temporary, path, progress)
        temporary.replace(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_entry(folder: Path, path: Path, progress: Progress) -> None:
    source = GGUFFile(path)
    config = source.config()
    _write_weights(folder, source, config, progress)
    save_gguf_tokenizer(path, folder)
    places = {name: asdict(place) for name, place in source.places(config).items()}
    (folder / _BLOCKS).write_text(json.dumps(places), encoding="utf-8")
    (folder / _CONFIG).write_text(json.dumps(asdict(config)), encoding="utf-8")


def _write_weights(folder: Path, source: GGUFFile, config: DecoderConfig, progress: Progress) -> None:
    """Shards of about `SHARD_BYTES`, so that no more than one is in memory."""
    shard: dict[str, Tensor] = {}
    pending = shards = 0
    for done, (name, weight) in enumerate(source.weights(config), start=1):
        shard[name] = weight
        pending += weight.nbytes
        if pending >= SHARD_BYTES:
            shards = _save_shard(folder, shard, shards)
            shard, pending = {}, 0
        progress(f"converting {source.path.name}", done, source.num_weights)
    if shard:
        _save_shard(folder, shard, shards)


def _save_shard(folder: Path, shard: dict[str, Tensor], index: int) -> int:
    save_file(shard, folder / f"model-{index:05}.safetensors")
    return index + 1


def _write_error(cache_dir: Path, error: Exception) -> str:
    full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
    if not full:
        return f"cannot write the converted model to {cache_dir}: {error}"
    return (
        f"the disk of {cache_dir} is full; the converted model was not kept; "
        "free some space, or set XDG_CACHE_HOME to another disk"
    )


def _tuple_or_none(values: list[float] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values)

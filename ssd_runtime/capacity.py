"""Whether the memory is there that the settings ask for: a refusal at the start instead of a crash later."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_runtime.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.decoder import Decoder

GIB = 1 << 30
TARGET_LOWER = (
    "engine.kv_cache_tokens, engine.max_batch_size or scheduler.max_tokens, "
    "or choose a smaller engine.kv_cache_dtype"
)
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def new_kv(
    decoder: Decoder, num_blocks: int, block_size: int, dtype: torch.dtype, *, whose: str, lower: str
) -> PagedKV:
    """Memory for keys and values; raises `ConfigError` where there is not so much.

    whose: the model's role; lower: what can be done, both for the message.
    """
    from ssd_runtime.memory.entries import entry_bytes

    config, tokens = decoder.config, num_blocks * block_size
    nbytes = tokens * config.layers * config.kv_heads * entry_bytes(dtype, config.head_dim)
    if decoder.transfer.device.type == "cpu":
        require_host_memory(nbytes, tokens, whose=whose, lower=lower)
    try:
        return decoder.new_kv(num_blocks, block_size, dtype)
    except (MemoryError, OSError, OverflowError, RuntimeError) as error:
        raise ConfigError(
            f"{_takes(nbytes, tokens, whose)}, and so much cannot be had; lower {lower}"
        ) from error


def require_host_memory(nbytes: int, tokens: int, *, whose: str, lower: str) -> None:
    """Raise `ConfigError` where a KV cache of so many tokens is larger than this machine's memory."""
    there = host_memory()
    if there is not None and nbytes > there:
        raise ConfigError(
            f"{_takes(nbytes, tokens, whose)}, and this machine has {there / GIB:.1f} GiB; lower {lower}"
        )


def _takes(nbytes: int, tokens: int, whose: str) -> str:
    return f"the {whose}'s KV cache of {tokens} tokens takes {nbytes / GIB:.1f} GiB"


def host_memory() -> int | None:
    """Bytes that this process may use at most: the machine's, or its container's limit; None if unknown."""
    known = []
    with suppress(AttributeError, ValueError, OSError):
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):
            known.append(int(Path(limit).read_text()))  # "max" is no number
    return min(known, default=None)

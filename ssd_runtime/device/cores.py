"""Sets of CPU cores: how they are written in YAML, and how a thread is confined to one."""

from __future__ import annotations

import os
import re
import sys
import threading

from ssd_runtime.errors import ConfigError

_CPU = re.compile(r"cpu:(\d+)(?:-(\d+))?")
BEHIND = 5
"""By how much a lane's thread is nicer than the others of its process."""


def available_cores() -> frozenset[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def parse_cores(place: str) -> frozenset[int]:
    """`"cpu:0"`, `"cpu:0-3"` or `"auto"` as core numbers. Raises `ConfigError` for anything else."""
    if place == "auto":
        return available_cores()
    match = _CPU.fullmatch(place)
    if match is None:
        raise ConfigError(f"got {place!r}, expected auto, cpu:N or cpu:N-M on this machine")
    first, last = int(match[1]), int(match[2] or match[1])
    cores = frozenset(range(first, last + 1))
    missing = sorted(cores - available_cores())
    if missing or not cores:
        raise ConfigError(
            f"{place!r} names cores {missing or 'none'}, available: {sorted(available_cores())}"
        )
    return cores


def confine_thread(cores: frozenset[int]) -> None:
    """Confine the calling thread, and the threads it will start, to `cores`."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def let_others_go_first() -> None:
    """Make the calling thread, and the threads it will start, give way to the process's event loops.

    Where cores are scarce a loop that wakes up then runs at once, instead of after a pass. Linux only:
    elsewhere niceness belongs to whole processes.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + BEHIND)


def use_threads(num_threads: int) -> None:
    """Let the calling thread's products, torch's and native ones, use `num_threads` threads."""
    import torch

    from ssd_kernels.cpu.matrix import use_threads as use_native_threads

    torch.set_num_threads(num_threads)
    use_native_threads(num_threads)

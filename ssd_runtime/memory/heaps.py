"""How a process that serves keeps its memory level: few heaps, and what is free in them given back."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from functools import cache

TRIM_SECONDS = 5.0
OPTIONS = {
    "MALLOC_ARENA_MAX": (-8, 2),
    "MALLOC_MMAP_THRESHOLD_": (-3, 2 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": (-1, 64 * 2**20),
}
"""By the variable that overrides each: `mallopt`'s number of it, and its value. How many heaps; from how many
bytes on memory is mapped by itself, so that it is gone when it is free, as whole rows of logits after a pass;
and how many free bytes may stay at a heap's end, which would be few where the one before is set."""


@cache
def tidy_heaps() -> bool:
    """Let all threads that come share two heaps, and give back what is free in them now and then.

    Whether it does: only the GNU C library is asked. By itself that makes up to eight heaps a core, and
    whatever passes from thread to thread leaves holes in all of them: tens of megabytes within minutes, which
    nobody uses and nobody gets back. What the variables in `OPTIONS` say stands.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        for variable, option in OPTIONS.items():
            if variable not in os.environ:
                libc.mallopt(*option)
    except (AttributeError, OSError, TypeError):
        return False
    threading.Thread(target=_trim, args=(libc,), name="ssd-heaps", daemon=True).start()
    return True


def _trim(libc: ctypes.CDLL) -> None:
    while True:
        time.sleep(TRIM_SECONDS)
        libc.malloc_trim(0)

"""How a process that serves keeps its memory level: few heaps, and what is free in them given back."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from functools import cache

VARIABLE = "MALLOC_ARENA_MAX"
HEAPS = 2
TRIM_SECONDS = 5.0
_M_ARENA_MAX = -8


@cache
def tidy_heaps() -> bool:
    """Let all threads that come share `HEAPS` heaps, and give back what is free in them now and then.

    Whether it does: only the GNU C library is asked. By itself that makes up to eight heaps a core, and
    whatever passes from thread to thread leaves holes in all of them: tens of megabytes within minutes, which
    nobody uses and nobody gets back. Another number of heaps in `MALLOC_ARENA_MAX` stands.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.malloc_trim.argtypes = [ctypes.c_size_t]
        if VARIABLE not in os.environ:
            libc.mallopt(_M_ARENA_MAX, HEAPS)
    except (AttributeError, OSError, TypeError):
        return False
    threading.Thread(target=_trim, args=(libc,), name="ssd-heaps", daemon=True).start()
    return True


def _trim(libc: ctypes.CDLL) -> None:
    while True:
        time.sleep(TRIM_SECONDS)
        libc.malloc_trim(0)

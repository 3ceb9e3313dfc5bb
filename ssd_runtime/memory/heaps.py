"""How a process that serves shares its memory among its threads."""

from __future__ import annotations

import ctypes
import os

VARIABLE = "MALLOC_ARENA_MAX"
HEAPS = 2
_M_ARENA_MAX = -8


def share_heaps() -> bool:
    """Let all threads that come allocate from `HEAPS` heaps; whether they will.

    The GNU C library would make eight for each core, one a thread, and whatever passes from thread to thread
    leaves holes in all of them: tens of megabytes that are free, and that nobody gets back. Elsewhere, and
    where `MALLOC_ARENA_MAX` says something, nothing happens.
    """
    if VARIABLE in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, HEAPS))

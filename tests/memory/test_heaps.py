"""Threads share a few heaps: what each of them would keep for itself is free, and nobody gets it back."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from ssd_runtime.memory.heaps import tidy_heaps
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype, everybody = ctypes.c_void_p, threading.Barrier(8)

def allocate():
    everybody.wait()
    libc.malloc(1000)
    everybody.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""

LIBRARY = """
import ctypes, resource, threading
from ssd_runtime.memory import heaps
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
"""


def num_heaps(call: str, **environment: str) -> int:
    """How many heaps eight threads that allocate together make."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(call=call)],
        capture_output=True,
        text=True,
        check=True,
        env=kept | environment,
    )
    return len(re.findall("<heap nr=", done.stdout))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_eight_threads_share_two_heaps() -> None:
    """Where nobody says otherwise; the environment may."""
    assert num_heaps("tidy_heaps()") <= 2 < num_heaps("")
    assert num_heaps("tidy_heaps()", MALLOC_ARENA_MAX="4") > 2


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
@pytest.mark.parametrize(("size", "part"), [(10_000_000, 1.0), (1_000_000, 0.0)])
def test_what_is_large_is_gone_when_it_is_free(size: int, part: float) -> None:
    """Whatever lies behind it, and not only the first time. What is smaller stays, for the next one."""
    program = (
        LIBRARY
        + f"""
heaps.time.sleep = lambda seconds: threading.Event().wait()
assert heaps.tidy_heaps()
for _ in range(2):
    blocks = []
    for _ in range(10):
        blocks.append(libc.malloc({size}))
        libc.malloc(1000)
        ctypes.memset(blocks[-1], 1, {size})
    before = resident()
    for block in blocks:
        libc.free(block)
    assert abs((before - resident()) / (10 * {size}) - {part}) < 0.1
"""
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
def test_what_is_free_between_what_is_used_is_given_back() -> None:
    """By a thread that nobody has to start twice; every other block of many is still needed."""
    program = (
        LIBRARY
        + """
turns = threading.Semaphore(0)
heaps.time.sleep = lambda seconds: turns.acquire()
assert heaps.tidy_heaps() and heaps.tidy_heaps()
assert [thread.name for thread in threading.enumerate()].count("ssd-heaps") == 1
blocks = [libc.malloc(64_000) for _ in range(2000)]
for block in blocks:
    ctypes.memset(block, 1, 64_000)
for block in blocks[::2]:
    libc.free(block)
before = resident()
turns.release()
while before - resident() < 50_000_000:
    pass
"""
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

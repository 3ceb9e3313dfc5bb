"""stdin and stdout on the event loop: neither a reader that is slow nor a writer that waits stops it.

File descriptors are waited for, not read on threads: a thread in a blocking read would keep the
process from ending.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import AsyncIterator, Callable

from ssd_runtime.errors import SSDError

CHUNK_BYTES = 65536
PIPE_BYTES = 4096  # a pipe that polls as writable takes this much without blocking (POSIX PIPE_BUF)
MAX_LINE_BYTES = 16 * 2**20


class OutputClosedError(Exception):
    """Whoever read our answers has gone; that is not a fault."""


class LineSplitter:
    """Cuts chunks into lines, and keeps of each line one byte more than `limit` at most."""

    def __init__(self, limit: int = MAX_LINE_BYTES) -> None:
        self._limit = limit
        self._held = bytearray()

    def push(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes, without their newlines."""
        *ends, rest = chunk.split(b"\n")
        lines = [self._line(end) for end in ends]
        self._keep(rest)
        return lines

    def finish(self) -> list[bytes]:
        """The last line, where it has no newline."""
        return [self._line(b"")] if self._held else []

    def _line(self, end: bytes) -> bytes:
        self._keep(end)
        line = bytes(self._held)
        self._held.clear()
        return line

    def _keep(self, data: bytes) -> None:
        self._held += data[: self._limit + 1 - len(self._held)]


async def read_lines(fd: int, limit: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    """The lines of `fd` as they come; of a line longer than `limit` bytes, its first `limit` + 1."""
    splitter = LineSplitter(limit)
    while chunk := await _read(fd):
        for line in splitter.push(chunk):
            yield line
    for line in splitter.finish():
        yield line


class OutputStream:
    """Writes text to a descriptor, in order and at once."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_terminal = os.isatty(fd)

    async def write(self, text: str) -> None:
        """Write all of `text`. Raises `OutputClosedError`, or `SSDError` where the disk is full."""
        data = memoryview(text.encode("utf-8", "replace"))
        try:
            while data:
                await _ready(self._fd, to_write=True)
                data = data[os.write(self._fd, data[:PIPE_BYTES]) :]
        except BrokenPipeError:
            raise OutputClosedError from None
        except OSError as error:
            raise SSDError(f"stdout: the answers cannot be written: {error.strerror}") from error

    async def wait_closed(self) -> None:
        """Return never; raise `OutputClosedError` once the reader of a pipe has gone."""
        if stat.S_ISFIFO(os.fstat(self._fd).st_mode):
            await _ready(self._fd)  # the writing end of a pipe polls as readable only on an error
            raise OutputClosedError
        await asyncio.get_running_loop().create_future()


async def _read(fd: int) -> bytes:
    await _ready(fd)
    try:
        return os.read(fd, CHUNK_BYTES)
    except OSError as error:
        raise SSDError(f"stdin: it cannot be read: {error.strerror}") from error


async def _ready(fd: int, *, to_write: bool = False) -> None:
    """Wait until `fd` can be read or written without blocking; a regular file always can."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add: Callable[..., None] = loop.add_writer if to_write else loop.add_reader
    try:
        add(fd, _wake, ready)
    except PermissionError:
        return
    try:
        await ready
    finally:
        (loop.remove_writer if to_write else loop.remove_reader)(fd)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)

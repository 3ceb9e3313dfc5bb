"""Many streaming clients for a while: errors, the gaps that they see, and the daemon's memory.

    python scripts/load_daemon.py --clients 64 --seconds 120
    python scripts/load_daemon.py --clients 8 --seconds 120 --slow 8

Starts the daemon with the embedded model, and fills its KV caches first: their memory becomes resident with
the first use, and kept prompts use all of it sooner or later. Each client asks again and again, over a
connection of its own. Slow clients ask for long answers with much in each event, and read a byte a second.
Ends with status 1 when a client got an error, when nobody got an answer, or when the daemon's memory grew by
more than `--growth` after a third of the time.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ssd_runtime.bench.figures import percentile
from ssd_runtime.testing.daemon import COMMAND, QUIET, running

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):",
    "Roses are red,",
    "1, 2, 3, 4,",
)
TOKENS = 64
STEPS = 6
"""Of the memory's course, in the report."""
CACHE_TOKENS = 8192
FILLING = 512
"""Tokens in each of the prompts that fill the caches before the clock starts."""
HEAD = (
    "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
    "Connection: close\r\nContent-Type: application/json\r\n"
)
SLOW = {"prompt": PROMPTS[0], "max_tokens": 800, "ignore_eos": True, "stream": True, "logprobs": 20}


@dataclass(slots=True)
class Seen:
    """What the clients saw. gaps: seconds between two events of an answer; answers: whole ones."""

    answers: int = 0
    events: int = 0
    gaps: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    disconnected: int = 0
    memory: list[tuple[float, int]] = field(default_factory=list)


@asynccontextmanager
async def asked(
    port: int, body: dict[str, object], receive: int | None = None
) -> AsyncIterator[asyncio.StreamReader]:
    """A response whose head is still to be read. receive: bytes that the system may keep for us."""
    connection = socket.socket()
    if receive is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    limit = 2**20 if receive is None else 1
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    sent = json.dumps(body).encode()
    writer.write(f"{HEAD}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
    try:
        yield reader
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def client(port: int, number: int, until: float, seen: Seen) -> None:
    """Ask for one answer after the other."""
    turn = 0
    while time.perf_counter() < until:
        turn += 1
        body = {"prompt": PROMPTS[(number + turn) % len(PROMPTS)], "max_tokens": TOKENS, "ignore_eos": True}
        try:
            async with asked(port, {**body, "stream": True, "seed": 1000 * number + turn}) as reader:
                await read_answer(reader, seen)
        except OSError as error:
            seen.errors.append(repr(error))


async def read_answer(reader: asyncio.StreamReader, seen: Seen) -> None:
    """Read one answer to its end, and when its events came."""
    started, last, done = time.perf_counter(), None, False
    status = await reader.readline()
    if not status.startswith(b"HTTP/1.1 200"):
        seen.errors.append(status.decode() + (await reader.read()).decode(errors="replace")[-300:])
        return
    while line := await reader.readline():
        now = time.perf_counter()
        done = done or line == b"data: [DONE]\n"
        if not line.startswith(b"data: {"):
            continue
        if line.startswith(b'data: {"error"'):
            seen.errors.append(line.decode())
        seen.events += 1
        (seen.firsts if last is None else seen.gaps).append(now - (started if last is None else last))
        last = now
    if done:
        seen.answers += 1
    else:
        seen.errors.append("a stream ended without [DONE]")


async def slow_client(port: int, until: float, seen: Seen) -> None:
    """Read a byte a second, and come again when the daemon has had enough."""
    while time.perf_counter() < until:
        with suppress(OSError):
            async with asked(port, SLOW, receive=1024) as reader:
                await read_slowly(reader, until)
        seen.disconnected += time.perf_counter() < until


async def read_slowly(reader: asyncio.StreamReader, until: float) -> None:
    """A byte a second, until the daemon closes the connection."""
    seconds = itertools.takewhile(lambda _: time.perf_counter() < until, itertools.count())
    for _ in seconds:
        if not await reader.read(1):
            return
        await asyncio.sleep(1)


async def watch(pid: int, started: float, seen: Seen) -> None:
    """The daemon's resident memory, every second."""
    while True:
        seen.memory.append((time.perf_counter() - started, resident_bytes(pid)))
        await asyncio.sleep(1)


def resident_bytes(pid: int) -> int:
    """As the system counts them."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


async def fill(port: int) -> None:
    """Have the target's cache and the draft's full of kept prompts."""
    seen, random = Seen(), Random(1)
    for _ in range(2 * CACHE_TOKENS // FILLING):
        prompt = [random.randrange(1000, 10000) for _ in range(FILLING)]
        body = {"prompt": prompt, "max_tokens": 8, "stream": True, "speculation": {"mode": "ssd"}}
        async with asked(port, body) as reader:
            await read_answer(reader, seen)
    if seen.errors:
        raise RuntimeError(f"the caches could not be filled: {seen.errors[0]}")


async def load(port: int, pid: int, options: argparse.Namespace) -> Seen:
    """Everything at once, for the time that was asked for."""
    await fill(port)
    seen, started = Seen(), time.perf_counter()
    until = started + options.seconds
    watching = asyncio.create_task(watch(pid, started, seen))
    await asyncio.gather(
        *(client(port, number, until, seen) for number in range(options.clients)),
        *(slow_client(port, until, seen) for _ in range(options.slow)),
    )
    watching.cancel()
    return seen


def growth(seen: Seen, seconds: float) -> float:
    """By which part memory grew between the second third of the time and the last."""
    parts = [
        [size for at, size in seen.memory if first <= at / seconds < first + 1 / 3]
        for first in (1 / 3, 2 / 3)
    ]
    before, after = (statistics.median(part) if part else float("nan") for part in parts)
    return after / before - 1


def report(seen: Seen, grown: float) -> str:
    """What was seen, in lines."""
    lines = []
    for name, values in (("first event", seen.firsts), ("gap", seen.gaps)):
        shown = [f"{share}% {1e3 * (percentile(values, share) or 0):.1f} ms" for share in (50, 99)]
        lines.append(f"{name:12} {', '.join(shown)}, most {1e3 * max(values, default=0):.1f} ms")
    sizes = [size / 2**20 for _, size in seen.memory]
    lines += [
        f"answers      {seen.answers}, events {seen.events}, errors {len(seen.errors)}, "
        f"slow clients disconnected {seen.disconnected}",
        f"memory       {sizes[0]:.0f} MiB at first, {sizes[-1]:.0f} at last, most {max(sizes):.0f}; "
        f"{100 * grown:+.2f} % from the second third to the last",
    ]
    step = max(1, len(sizes) // STEPS)
    lines.append(f"its course   {', '.join(f'{size:.0f}' for size in sizes[::step])} MiB")
    lines += [f"error        {error.strip()[:300]}" for error in seen.errors[:5]]
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--slow", type=int, default=0, help="clients that read a byte a second")
    parser.add_argument("--growth", type=float, default=0.02, help="by which part memory may grow")
    parser.add_argument("--mode", default="hybrid")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--log", type=Path, help="where the report is kept, too")
    options = parser.parse_args()
    chosen = [part for setting in options.settings for part in ("--set", setting)]
    cache = ("--set", f"engine.kv_cache_tokens={CACHE_TOKENS}")
    with running(*COMMAND, "--mode", options.mode, *cache, *chosen, *QUIET) as daemon:
        daemon.logged("ready")
        seen = asyncio.run(load(daemon.port, daemon.process.pid, options))
    grown = growth(seen, options.seconds)
    told = (
        f"{options.clients} clients, {options.slow} slow ones, {options.seconds:g} s\n{report(seen, grown)}"
    )
    sys.stdout.write(told)
    if options.log:
        options.log.parent.mkdir(parents=True, exist_ok=True)
        options.log.write_text(told, encoding="utf-8")
    good = seen.answers > 0 and not seen.errors and grown <= options.growth
    return not good


if __name__ == "__main__":
    sys.exit(main())

"""What serving costs a round: 16 streaming clients beside the same load without a server.

    python scripts/measure_daemon.py --mode autoregressive --repeats 5

One engine, in this process. Its requests come now from 16 tasks of the library, now over HTTP from 16
clients in a process of their own, in turns. For each: the gap between a verification's end and the next
one's beginning (Python and hand-over), and the CPU time a round of the threads that hold the interpreter.
CPU times do not grow when others use the machine; gaps do, so medians are taken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

from ssd_runtime.app import Engine
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.engine.thread import new_event_loop
from ssd_runtime.server.door import Server, listen
from ssd_runtime.server.service import Service
from ssd_runtime.settings.load import load_settings
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import Request, SamplingParams

CLIENTS = 16
TOKENS = 32
PROMPT = "Once upon a time there was a"
PARAMS = SamplingParams(temperature=0.8, seed=1, max_tokens=TOKENS, ignore_eos=True)
SETTINGS = ("server.port=0", f"engine.max_batch_size={CLIENTS}", "log.level=warning")
THREADS = {"MainThread": "caller's loop", "ssd-engine": "engine's loop", "ssd-target": "target's lane"}


class Recorder:
    """Takes the trace's records and keeps the verifications."""

    def __init__(self) -> None:
        self.verifications: list[CommandRecord] = []

    def command(self, record: CommandRecord) -> None:
        """One command of a lane."""
        if record.lane == "target":
            self.verifications.append(record)

    def round(self, record: RoundRecord) -> None:
        """One row's round; not wanted here."""

    def close(self) -> None:
        """Nothing to close."""


def cpu_seconds() -> dict[str, float]:
    """CPU time so far of each thread in `THREADS`, by what it is."""
    return {
        THREADS[thread.name]: int(
            Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0]
        )
        / 1e9
        for thread in threading.enumerate()
        if thread.name in THREADS
    }


async def by_library(engine: Engine) -> None:
    """The load without a server: 16 tasks read pieces."""

    async def client(number: int) -> None:
        async for _ in engine.generate(Request(f"library-{number}", prompt=PROMPT, raw=True, params=PARAMS)):
            pass

    await asyncio.gather(*map(client, range(CLIENTS)))


async def by_http(port: int) -> None:
    """The same load from 16 clients of another process."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, "--clients", str(port))
    if await process.wait():
        raise SystemExit("a client failed")


def clients(port: int) -> None:
    """Be the 16 clients."""
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
    body |= {"temperature": PARAMS.temperature, "seed": PARAMS.seed}

    def client(_: int) -> None:
        connection = HTTPConnection("127.0.0.1", port, timeout=120)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        if not connection.getresponse().read().endswith(b"data: [DONE]\n\n"):
            raise SystemExit("a stream ended early")

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))


async def measured(load: Callable[[], Awaitable[None]], recorder: Recorder) -> dict[str, float]:
    """Milliseconds a round by what they are, of one run of `load`."""
    recorder.verifications.clear()
    before = cpu_seconds()
    await load()
    spent = cpu_seconds()
    done = list(recorder.verifications)
    full = [(a, b) for a, b in pairwise(done) if a.rows == b.rows == CLIENTS]
    gaps = [1e3 * (b.started - a.finished) for a, b in full]
    passes = [1e3 * (b.finished - b.started) for _, b in full]
    figures = {"rounds": float(len(done)), "pass": statistics.median(passes), "gap": statistics.median(gaps)}
    return figures | {f"CPU, {name}": 1e3 * (spent[name] - before[name]) / len(done) for name in before}


async def compare(mode: str, repeats: int) -> dict[str, list[dict[str, float]]]:
    """The figures of each repeat, without and with the server."""
    recorder = Recorder()
    loaded = load_settings(None, [*SETTINGS, f"scheduler.policy={mode}"], environ={})
    service = Service(loaded.settings)
    found: dict[str, list[dict[str, float]]] = {"library": [], "daemon": []}
    with listen(loaded.settings.server) as listener:
        async with Engine(loaded, trace=recorder, plugins=[service.metrics]) as engine:
            await service.use(engine)
            server = Server(service, None)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            loads: dict[str, Callable[[], Awaitable[None]]] = {
                "library": lambda: by_library(engine),
                "daemon": lambda: by_http(port),
            }
            for _ in range(repeats):
                for name, load in loads.items():
                    found[name].append(await measured(load, recorder))
            server.should_exit = True
            await serving
    return found


def report(found: dict[str, list[dict[str, Any]]]) -> None:
    """Medians over the repeats, and their ranges."""
    for name, runs in found.items():
        sys.stdout.write(f"{name}: milliseconds a round, median of {len(runs)} runs (least to most)\n")
        for what in runs[0]:
            values = sorted(run[what] for run in runs)
            middle = statistics.median(values)
            sys.stdout.write(f"  {what:20} {middle:8.3f}  ({values[0]:.3f} to {values[-1]:.3f})\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mode", default="autoregressive")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--clients", type=int, metavar="PORT", help="be the clients (used by the script itself)"
    )
    arguments = parser.parse_args()
    if arguments.clients:
        clients(arguments.clients)
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        report(runner.run(compare(arguments.mode, arguments.repeats)))


if __name__ == "__main__":
    main()

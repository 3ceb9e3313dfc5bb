"""What a round costs beside its passes: Python on the engine's loop, and the hand-overs to the lanes.

    python -m scripts.profile_rounds [--modes …] [--batches 1,16] [--set KEY=VALUE …] [--profile]

One engine a row, in this process. *Python* is the CPU time of the loop's own thread in a round without the
*hand-over*: waking a lane's thread, sleeping until its result is there, and waking the caller's thread.
*There* is the time from a command's submission to its start on the target's lane, *back* from its end to the
loop's going on. Medians over rounds, in microseconds, and *best*: the tenth of the rounds that had least
Python, since other machines on the same processor slow a good part of them down; the share is Python by the
whole round.
--profile adds where the loop's Python is spent, by function.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from ssd_runtime.app import Engine
from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.thread import new_event_loop
from ssd_runtime.settings.load import load_settings
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import Request, SamplingParams

PROMPT = "Write a story about a ship, a storm and an island, and tell it slowly."
HEADER = (
    "mode",
    "batch",
    "round, ms",
    "pass, ms",
    "Python, µs",
    "best, µs",
    "share",
    "hand-over, µs",
    "there, µs",
    "back, µs",
)

Results = Callable[[asyncio.Future[Any], Any], Awaitable[Any]]


@dataclass(slots=True)
class Recorder:
    """The trace's records of the target's passes."""

    passes: list[CommandRecord] = field(default_factory=list)

    def command(self, record: CommandRecord) -> None:
        """One command of a lane."""
        if record.lane == "target":
            self.passes.append(record)

    def round(self, record: RoundRecord) -> None:
        """One row's round; not wanted here."""

    def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class HandOver:
    """CPU time in seconds that this round's hand-overs have taken so far."""

    seconds: float = 0.0

    def taken(self) -> float:
        """What there is, and begin anew."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, timed."""

        def timed(*arguments: Any) -> Any:
            cpu = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.thread_time() - cpu

        return timed

    def of_wait(self, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """`function`, timed until it is done."""

        async def timed(*arguments: Any) -> Any:
            cpu = time.thread_time()
            try:
                return await function(*arguments)
            finally:
                self.seconds += time.thread_time() - cpu

        return timed


@dataclass(slots=True)
class Watched:
    """The target's lane as the loop sees it, with the times of its passes' submissions and results."""

    lane: Any
    hand_over: HandOver
    submitted: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)

    def submit(self, command: Any) -> asyncio.Future[Any]:
        """Pass it on."""
        future: asyncio.Future[Any] = self.hand_over.of(self._submit)(command)
        return future

    def _submit(self, command: Any) -> asyncio.Future[Any]:
        self.submitted.append(monotonic())
        future: asyncio.Future[Any] = self.lane.submit(command)
        future.add_done_callback(lambda _: self.resumed.append(monotonic()))
        return future

    def __getattr__(self, name: str) -> Any:
        """Everything else is the lane's own."""
        return getattr(self.lane, name)


@dataclass(slots=True)
class Rounds:
    """An engine's rounds as they pass: seconds of the loop's CPU, and of the clock."""

    profiler: cProfile.Profile | None
    hand_over: HandOver
    python: list[float] = field(default_factory=list)
    handing: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)

    def watch(self, run_round: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """`run_round`, timed."""

        async def timed() -> None:
            if self.profiler is not None:
                self.profiler.enable()
            cpu, clock = time.thread_time(), monotonic()
            await run_round()
            self.handing.append(self.hand_over.taken())
            self.python.append(time.thread_time() - cpu - self.handing[-1])
            self.whole.append(monotonic() - clock)
            if self.profiler is not None:
                self.profiler.disable()

        return timed

    def wait(self, results: Results) -> Results:
        """`EngineCore._results`, whose wait is timed by itself."""

        async def settled(verifying: asyncio.Future[Any]) -> None:
            with suppress(Exception):  # what it raises is for `results`
                await verifying

        settle = self.hand_over.of_wait(settled)

        async def timed(verifying: asyncio.Future[Any], command: Any) -> Any:
            await settle(verifying)
            return await results(verifying, command)

        return timed

    def tell(self, submit: Callable[[LiveRequest], None]) -> Callable[[LiveRequest], None]:
        """`EngineCore.submit`, for requests whose listener is timed by itself."""

        def timed(live: LiveRequest) -> None:
            live.listener = self.hand_over.of(live.listener)
            submit(live)

        return timed


async def measured(
    mode: str, batch: int, options: argparse.Namespace, profiler: cProfile.Profile | None
) -> list[str]:
    """One row of the table."""
    overrides = [*options.set, f"scheduler.policy={mode}", f"engine.max_batch_size={batch}"]
    recorder, hand_over = Recorder(), HandOver()
    rounds = Rounds(profiler, hand_over)
    async with Engine(load_settings(None, overrides, {}), trace=recorder) as engine:
        running: Any = engine._running
        if (draft := running.speculation.lane) is not None:
            draft._supply.lane.submit = hand_over.of(draft._supply.lane.submit)
            draft._is_done_in_time = hand_over.of_wait(draft._is_done_in_time)
        core = running.core
        core.target = lane = Watched(core.target, hand_over)
        core.run_round = rounds.watch(core.run_round)
        core._results = rounds.wait(core._results)
        core.submit = rounds.tell(core.submit)
        await asyncio.gather(*(engine.complete(request) for request in requests(batch, options.max_tokens)))
    there = [record.started - at for record, at in zip(recorder.passes, lane.submitted, strict=True)]
    back = [at - record.finished for record, at in zip(recorder.passes, lane.resumed, strict=True)]
    python, whole = median(rounds.python), median(rounds.whole)
    passes = median(record.finished - record.started for record in recorder.passes)
    best = quantiles(rounds.python, n=10)[0]
    micros = (1e6 * median(each) for each in (rounds.handing, there, back))
    cells = (1e3 * whole, 1e3 * passes, 1e6 * python, 1e6 * best, python / whole, *micros)
    return [mode, str(batch), *map("{:.3g}".format, cells)]


def requests(batch: int, tokens: int) -> list[Request]:
    """As many long answers at once."""
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=tokens, ignore_eos=True)
    return [Request(f"{i}", prompt=f"{i}. {PROMPT}", params=params) for i in range(batch)]


def told(cells: Sequence[str]) -> None:
    """A line of the table."""
    sys.stdout.write(f"| {' | '.join(cells)} |\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--modes", default="autoregressive,speculative,ssd")
    parser.add_argument("--batches", default="1,16")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profiler = cProfile.Profile() if options.profile else None
    told(HEADER)
    told(["---"] * len(HEADER))
    for batch in map(int, options.batches.split(",")):
        for mode in options.modes.split(","):
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                told(runner.run(measured(mode, batch, options, profiler)))
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()

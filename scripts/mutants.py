"""Which small changes to the code does no test notice?

    python -m scripts.mutants ssd_runtime/sampling --tests tests/sampling tests/engine --sample 400

Every mutation of `scripts/mutations.py` gets a process forked from one in which everything is imported and
all tests are collected. There one function is exchanged, or one constant, and of the tests that run the
changed lines one after another is run until one fails. What no test fails for is a survivor.
"""

from __future__ import annotations

import argparse
import gc
import math
import mmap
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.covered import Measured, digest, in_processes, measured, passes, silence
from scripts.exchange import Loaded, loaded, mutate
from scripts.mutations import Mutation, mutations

PYTEST = ("-q", "-pno:randomly", "-pno:cacheprovider", "--capture=no", "--timeout=0")
QUICK = ("-m", "not slow and not long")
TURN = 0.04
"""Seconds; how often a child is looked at."""
IDLE_TURNS = 200
BUSY_SECONDS, BUSY_FACTOR = 3.0, 5.0
"""A child hangs that did nothing for so many turns, or worked too long in one test."""
MEMORY = 4 << 30
KILLED, HUNG, SURVIVED, UNREACHED = "killed", "hung", "survived", "not reached"


class Mutants:
    """A pytest plugin that runs the collected tests against every mutation, not just once."""

    def __init__(
        self,
        chosen: Sequence[Mutation],
        files: Sequence[Path],
        kept: Path,
        log: Path,
        budget: float,
        jobs: int = 1,
    ) -> None:
        """files: all that may be mutated. kept: where it is kept which of their lines each test runs.
        log: gets a row for each mutation: what became of it, its name, the test that noticed it.
        budget: most seconds of tests for one mutation. jobs: how many are tried at a time.
        """
        self._log = log
        self._jobs = jobs
        self._kept = kept
        self._chosen = chosen
        self._files = {str(path.resolve()) for path in files}
        self._budget = budget
        self._kills: Counter[str] = Counter()

    def pytest_configure(self) -> None:
        """The same examples each time, and none made smaller."""
        from hypothesis import Phase, settings  # not before pytest, which rewrites it

        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """See pytest."""
        there = loaded()
        tests = measured(session.items, self._files, self._kept, self._jobs)
        total = sum(test.seconds for test in tests)
        sys.stderr.write(f"{len(tests)} tests of {total:.0f} s, {len(self._chosen)} mutations\n")
        gc.freeze()  # looking through what is there already would copy it

        def work(share: Sequence[Mutation]) -> None:
            self._place = mmap.mmap(-1, 8)
            for mutation in share:
                fate, test = self._try(mutation, tests, there)
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(f"{fate}\t{mutation}\t{test}\n")

        in_processes(self._chosen, self._jobs, work)
        return True

    def _try(self, mutation: Mutation, tests: Sequence[Measured], there: Loaded) -> tuple[str, str]:
        order = self._order(mutation, tests)
        if not order:
            return UNREACHED, ""
        self._place[:] = bytes(8)
        if (pid := os.fork()) == 0:
            silence()
            _limit_memory()
            mutate(mutation, there)
            for place, test in enumerate(order):
                self._place[:] = place.to_bytes(8, "little")
                if not passes(test.item):
                    os._exit(1)
            os._exit(0)
        status = self._wait(pid, order)
        if status == 0:
            return SURVIVED, ""
        killer = order[self._at()].item.nodeid
        self._kills[killer] += 1
        return (HUNG if status is None else KILLED), killer

    def _order(self, mutation: Mutation, tests: Sequence[Measured]) -> list[Measured]:
        """The tests that run the changed lines; those first that are quick, run little else or often kill."""
        path, (first, last) = str(mutation.path.resolve()), mutation.lines
        changed = {(path, line) for line in range(first, last + 1)}
        running = [test for test in tests if not mutation.functions or not changed.isdisjoint(test.lines)]
        running.sort(key=lambda test: test.seconds * len(test.lines) / (1 + self._kills[test.item.nodeid]))
        left = self._budget
        return [test for test in running if (left := left - test.seconds) > 0]

    def _wait(self, pid: int, order: Sequence[Measured]) -> int | None:
        """The status of a child, or None when one of its tests took far too long."""
        place = idle = 0
        worked = started = 0.0
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            before, (worked, waits) = worked, work_of(pid)
            idle = idle + 1 if waits and worked == before else 0
            if self._at() != place:
                place, started = self._at(), worked
            if idle > IDLE_TURNS or worked - started > BUSY_SECONDS + BUSY_FACTOR * order[place].seconds:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return None
            time.sleep(TURN)
        return ended[1]

    def _at(self) -> int:
        return int.from_bytes(self._place[:], "little")


def work_of(pid: int) -> tuple[float, bool]:
    """A process's seconds of work, and whether all of its threads wait (not for a core)."""
    fields: list[list[str]] = []
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):  # a thread that has ended since
            fields.append(path.read_text(encoding="utf-8").rpartition(")")[2].split())
    ticks = sum(int(each[11]) + int(each[12]) for each in fields)
    return ticks / os.sysconf("SC_CLK_TCK"), all(each[0] == "S" for each in fields)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY,) * 2)


def told(log: Path) -> dict[str, str]:
    """What became of each mutation, as far as it was tried; what was tried again counts as it went last."""
    if not log.exists():
        return {}
    rows = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    return {name: fate for fate, name, _ in rows}


def chosen_mutations(options: argparse.Namespace, files: Sequence[Path], log: Path) -> list[Mutation]:
    """In random order, so that a run that is cut short is a sample too; without those that were tried."""
    every = [mutation for file in files for mutation in mutations(file)]
    chosen = random.Random(options.seed).sample(every, min(len(every), options.sample or len(every)))
    fates, wanted = told(log), (SURVIVED, UNREACHED) if options.again else (None,)
    return [mutation for mutation in chosen if fates.get(str(mutation)) in wanted]


def interval(part: int, whole: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, part / whole
    middle = (share + z * z / (2 * whole)) / (1 + z * z / whole)
    half = z / (1 + z * z / whole) * math.sqrt(share * (1 - share) / whole + z * z / (4 * whole**2))
    return middle - half, middle + half


def options_of() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", nargs="+", help="folders of modules to mutate")
    parser.add_argument("--tests", nargs="+", default=["tests"])
    parser.add_argument("--sample", type=int, help="so many mutations, drawn at random; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=10.0, help="most seconds of tests for a mutation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many at a time")
    parser.add_argument("--again", action="store_true", help="try those that no test noticed again")
    parser.add_argument(
        "--kept",
        type=Path,
        default=Path("build/mutants"),
        help="folder for what is known: `measured.jsonl`, which lines each test runs, and for each state of "
        "the sources a `.log`, what became of each mutation. What is known is not tried again",
    )
    return parser.parse_args()


def main() -> None:
    """Try the mutations, and say how many are left."""
    options = options_of()
    files = sorted(file for source in options.sources for file in Path(source).rglob("*.py"))
    log: Path = options.kept / f"{digest(map(str, files))}.log"
    every = chosen_mutations(options, files, log)
    options.kept.mkdir(parents=True, exist_ok=True)
    plugin = Mutants(every, files, options.kept / "measured.jsonl", log, options.budget, options.jobs)
    code = pytest.main([*PYTEST, *QUICK, *options.tests], plugins=[plugin])
    fates = Counter(told(log).values())
    left, whole = fates[SURVIVED] + fates[UNREACHED], max(fates.total(), 1)
    low, high = interval(left, whole)
    counts = ", ".join(f"{count} {fate}" for fate, count in sorted(fates.items()))
    sys.stdout.write(f"{counts}: {left / whole:.1%} left ({low:.1%} to {high:.1%}); see {log}\n")
    raise SystemExit(code)


if __name__ == "__main__":
    main()

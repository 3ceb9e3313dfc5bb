"""Which lines of some files each test runs, and how long it takes: found once, then kept in a file."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NoReturn, TypeVar

import pytest
from _pytest.runner import runtestprotocol

Lines = set[tuple[str, int]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measured:
    """A test, the lines that it runs of the files in question, and how long it takes in seconds."""

    item: pytest.Item
    seconds: float
    lines: Lines


def measured(items: Sequence[pytest.Item], files: set[str], kept: Path, jobs: int) -> list[Measured]:
    """The tests that run anything of `files`.

    Those that the file `kept` knows of are not run again, unless their own file or one of `files` has
    changed; `jobs` others are run at a time. A test that fails is left out and named.
    """
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.touch()

    def key(item: pytest.Item) -> tuple[str, str]:
        return item.nodeid, digest((*files, str(item.path)))

    def measure(share: Sequence[pytest.Item]) -> None:
        for item in share:
            seconds, lines = _run(item, files)
            with kept.open("ab", buffering=0) as file:  # one call for a row: others write too
                file.write(json.dumps([*key(item), seconds, sorted(lines)]).encode() + b"\n")

    known = _known(kept)
    in_processes([item for item in items if key(item) not in known], jobs, measure)
    known = _known(kept)
    return [test for item in items if (test := Measured(item, *known[key(item)])).lines]


def _known(kept: Path) -> dict[tuple[str, str], tuple[float, Lines]]:
    rows = map(json.loads, kept.read_text(encoding="utf-8").splitlines())
    return {(name, of): (seconds, set(map(tuple, lines))) for name, of, seconds, lines in rows}


def in_processes(things: Sequence[T], jobs: int, work: Callable[[Sequence[T]], None]) -> None:
    """Let each of `jobs` forked processes do its share. Raises RuntimeError where one fails."""
    shares = [things[i::jobs] for i in range(jobs)]
    workers = [os.fork() or _end_after(work, share) for share in shares]
    ended = [os.waitpid(worker, 0)[1] for worker in workers]
    if any(ended):
        raise RuntimeError(f"the processes ended with the statuses {ended}")


def _end_after(work: Callable[[Sequence[T]], None], share: Sequence[T]) -> NoReturn:
    try:
        work(share)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def digest(files: Iterable[str]) -> str:
    """Of what stands in some files, whatever their order."""
    return _digest(tuple(sorted(files)))


@cache
def _digest(files: tuple[str, ...]) -> str:
    whole = b"".join(sha256(Path(file).read_bytes()).digest() for file in files)
    return sha256(whole).hexdigest()[:16]


def passes(item: pytest.Item) -> bool:
    """Whether a test passes; for a forked process."""
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))


def silence() -> None:
    """Say nothing from here on; for a forked process."""
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def _run(item: pytest.Item, files: set[str]) -> tuple[float, Lines]:
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        silence()
        with os.fdopen(write, "w") as pipe:
            json.dump(_traced(item, files), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    _, status = os.waitpid(pid, 0)
    passed, seconds, lines = json.loads(told) if told else (False, 0.0, [])
    if not passed:
        sys.stderr.write(f"{item.nodeid} fails without a mutation (status {status}) and is left out\n")
        return 0.0, set()
    return seconds, set(map(tuple, lines))


def _traced(item: pytest.Item, files: set[str]) -> tuple[bool, float, list[tuple[str, int]]]:
    """Whether a test passes, its seconds of work, and the lines of `files` that it runs on any thread."""
    unseen: dict[CodeType, set[int]] = {}
    seen: Lines = set()

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        if code not in unseen:
            unseen[code] = {line for _, _, line in code.co_lines() if line is not None}
        return note(frame, event, argument) if unseen[code] else None

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        seen.add((frame.f_code.co_filename, frame.f_lineno))
        unseen[frame.f_code].discard(frame.f_lineno)
        return note

    threading.settrace(enter)
    sys.settrace(enter)
    started = time.process_time()
    passed = passes(item)
    sys.settrace(None)
    return passed, time.process_time() - started, sorted(seen)

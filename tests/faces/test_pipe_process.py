"""What only a process shows: signals, a closed stdout, exit statuses, and never a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

DRIVER = """
import asyncio, sys, threading
from ssd_runtime.cli.formats import TextFormat
from ssd_runtime.cli.pipe import run_pipe
from ssd_runtime.cli.running import note, run
from ssd_runtime.testing.fake_engine import FakeEngine, echo, prompt_text
from ssd_runtime.types import SamplingParams

class Loading(FakeEngine):
    async def __aenter__(self):
        note("loading")
        await asyncio.to_thread(threading.Event().wait)

def script(request):
    return [asyncio.Event()] if prompt_text(request) == "wait" else echo(request)

make = Loading if sys.argv[1:] == ["loading"] else lambda: FakeEngine(script)
work = run_pipe(make, TextFormat(note), stdin=0, stdout=1, defaults=SamplingParams())
sys.exit(run(work))
"""


def start(*arguments: str, stdin: int | None = subprocess.PIPE) -> subprocess.Popen[bytes]:
    """A pipe in a process of its own, with a scripted engine."""
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *arguments],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_endless_input_ends_with_its_reader() -> None:
    """As in `yes hello | ssd-run pipe | head -1`: status 0, and nothing on stderr."""
    with subprocess.Popen(["yes", "hello"], stdout=subprocess.PIPE) as source:
        assert source.stdout is not None
        with start(stdin=source.stdout.fileno()) as pipe:
            assert pipe.stdout is not None
            assert pipe.stderr is not None
            assert pipe.stdout.readline() == b"hello\n"
            pipe.stdout.close()
            source.stdout.close()
            assert pipe.wait(20) == 0
            assert pipe.stderr.read() == b""


def test_an_interrupt_ends_the_pipe_with_130() -> None:
    """What was answered has been written, what runs is given up, one word on stderr."""
    with start() as pipe:
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        assert pipe.stderr is not None
        pipe.stdin.write(b"one\nwait\n")
        pipe.stdin.flush()
        assert pipe.stdout.readline() == b"one\n"
        pipe.send_signal(signal.SIGINT)
        assert pipe.wait(20) == 130
        assert pipe.stdout.read() == b""
        assert pipe.stderr.read() == b"interrupted\n"


def test_an_interrupt_does_not_wait_for_the_model() -> None:
    """Loading happens on a thread that nothing can stop; the process ends all the same."""
    with start("loading") as pipe:
        assert pipe.stderr is not None
        assert pipe.stderr.readline() == b"loading\n"
        pipe.send_signal(signal.SIGINT)
        assert pipe.wait(20) == 130
        assert pipe.stderr.read() == b"interrupted\n"


def test_a_stdin_that_stays_open_does_not_hold_the_process() -> None:
    """When the reader goes, the process ends, though its input has not."""
    with start() as pipe:
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        pipe.stdin.write(b"one\nwait\n")
        pipe.stdin.flush()
        assert pipe.stdout.readline() == b"one\n"
        pipe.stdout.close()
        assert pipe.wait(20) == 0

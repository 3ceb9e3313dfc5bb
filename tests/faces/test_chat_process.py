"""`ssd-run chat` in a process: Ctrl-C and Ctrl-D on a terminal, and an interrupt without one."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

DRIVER = """
import asyncio, sys
from ssd_runtime.cli.chat import _ask, run_chat
from ssd_runtime.cli.running import run
from ssd_runtime.testing.fake_engine import FakeEngine, echo, prompt_text
from ssd_runtime.types import SamplingParams

def script(request):
    return ["part ", asyncio.Event()] if prompt_text(request) == "wait" else echo(request)

work = run_chat(lambda: FakeEngine(script), stdin=0, stdout=1, params=SamplingParams(), prompt=_ask)
sys.exit(run(work))
"""


class Terminal:
    """A chat on a pseudo terminal."""

    def __init__(self) -> None:
        self._fd, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)

    def type(self, data: bytes) -> None:
        os.write(self._fd, data)

    def see(self, text: bytes) -> bytes:
        """What is shown up to and including `text`."""
        shown = b""
        while text not in shown:
            shown += os.read(self._fd, 1000)
        return shown

    def close(self) -> None:
        os.close(self._fd)


def test_an_interrupt_stops_the_answer_and_the_end_of_input_the_chat() -> None:
    """At the prompt an interrupt only says how to leave."""
    terminal = Terminal()
    terminal.see(b"> ")
    terminal.type(b"wait\n")
    terminal.see(b"part ")
    terminal.process.send_signal(signal.SIGINT)
    terminal.see(b"\n> ")
    terminal.process.send_signal(signal.SIGINT)
    assert b"/exit (or Ctrl-D) ends it" in terminal.see(b"\n> ")
    terminal.type(b"still here\n")
    assert terminal.see(b"\n> ").endswith(b"still here\r\n> ")
    terminal.type(b"\x04")
    assert terminal.process.wait(20) == 0
    terminal.close()


def test_without_a_terminal_an_interrupt_between_answers_ends_the_chat() -> None:
    """Nobody is there to be asked again; status 130 and no traceback."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(b"hi\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"hi\n"
        assert process.stderr.read(4) == b"> > "
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
        assert process.stderr.read() == b""

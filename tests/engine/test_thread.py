"""The engine's thread: every call is answered or carried out, and a blocked loop is noticed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import pytest

from ssd_runtime.clock import ManualClock
from ssd_runtime.engine.thread import LoopThread
from ssd_runtime.errors import EngineClosedError


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd_runtime.engine.thread.BEAT_SECONDS", 0.01)


def running(thread: LoopThread, main: Coroutine[Any, Any, None]) -> None:
    began = threading.Event()
    thread.start(main)
    thread.call(began.set)
    assert began.wait(60)


async def until(event: asyncio.Event) -> None:
    await event.wait()


def test_a_call_in_the_last_moment_is_carried_out_or_refused() -> None:
    """Never swallowed: whoever asked would wait for ever."""
    for _ in range(20):
        thread, end = LoopThread("test"), asyncio.Event()
        running(thread, until(end))
        asked: list[int] = []
        carried_out: list[int] = []
        thread.call(end.set)
        with suppress(EngineClosedError):
            while True:
                thread.call(carried_out.append, len(asked))
                asked.append(len(asked))
        assert thread.join(60)
        assert carried_out == asked


def test_a_blocked_loop_falls_silent_and_beats_again() -> None:
    """By the clock it was given."""
    clock, end, release, blocked = ManualClock(), asyncio.Event(), threading.Event(), threading.Event()
    thread = LoopThread("test", clock)

    def block() -> None:
        blocked.set()
        release.wait()

    running(thread, until(end))
    thread.call(block)
    assert blocked.wait(60)
    clock.advance(100)
    assert thread.silence == 100
    release.set()
    while thread.silence:  # until the next beat
        pass
    thread.call(end.set)
    assert thread.join(60)


def test_what_a_beat_raises_does_not_end_the_beats(caplog: pytest.LogCaptureFixture) -> None:
    """The loop says what it was, and goes on."""
    beats, end = threading.Semaphore(0), asyncio.Event()

    def beat() -> None:
        beats.release()
        raise RuntimeError("skipped")

    thread = LoopThread("test")
    thread.start(until(end), beat)
    assert beats.acquire(timeout=60)
    assert beats.acquire(timeout=60)
    thread.call(end.set)
    assert thread.join(60)
    assert "skipped" in caplog.text


def test_a_coroutine_that_raises_ends_the_thread_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is left to hear the exception itself."""

    async def fail() -> None:
        raise RuntimeError("no more")

    thread = LoopThread("test")
    thread.start(fail())
    assert thread.join(60)
    assert not thread.is_alive
    assert "no more" in "".join(capsys.readouterr())

"""Long work on one thread leaves the others, and so every event loop, free to go on."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import load, resolve
from ssd_runtime.testing.daemon import WATCHED, Daemon, running

LARGE = ("scheduler.max_tokens=8192", "engine.max_batch_size=1", "scheduler.policy=autoregressive")
LIMIT = 0.05
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
TEXT = "many words " * 10_000
STEPS = 20


@pytest.mark.model
def test_other_threads_work_while_a_long_text_is_tokenised() -> None:
    """100 kB take about 60 ms, in which this thread gets its turn again and again."""
    tokenizer = load(resolve("smollm2-135m"), Float32Quantizer(), progress=lambda *_: None).tokenizer
    began, never = threading.Event(), threading.Event()

    def tokenise() -> int:
        began.set()
        return len(tokenizer.encode(TEXT))

    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(tokenise)
        began.wait()
        steps = 0
        while not work.done():
            never.wait(0.0005)
            steps += 1
        assert work.result() > STEPS
    assert steps > STEPS


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_nothing_that_a_daemon_does_blocks_its_loop() -> None:
    """50 ms at most, while it loads, reads a prompt of 8000 tokens, tokenises 100 kB, learns a grammar.

    Measured twice: by the loop itself, without the time in which the machine gave it no core, each single
    time; and from outside, 99 times of 100.
    """
    with running("-c", WATCHED, *LARGE) as daemon:
        loading = Pings(daemon, keep=False)
        daemon.logged("ready")
        assert loading.slow() < LIMIT
        working = Pings(daemon, keep=True)
        assert daemon.post({"prompt": [30] * 8000, "max_tokens": 1}).getresponse().status == 200
        for _ in range(5):
            refused = daemon.post({"prompt": TEXT, "max_tokens": 1}).getresponse()
            assert b"context_length_exceeded" in refused.read()
        for asked in ({"logprobs": 3}, {"structured_outputs": {"json": SCHEMA}}, {"echo": True, "n": 8}):
            assert daemon.post({"prompt": "many words", "max_tokens": 8} | asked).getresponse().status == 200
        assert working.slow() < LIMIT
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.logged("watched")["longest_seconds"] < LIMIT


class Pings:
    """Asks `/health` again and again on a thread of its own, until `slow` is asked for.

    keep: over one connection. The process that answers during loading has one connection for each.
    """

    def __init__(self, daemon: Daemon, *, keep: bool) -> None:
        self._connection = HTTPConnection("127.0.0.1", daemon.port, timeout=60)
        self._keep = keep
        self._end = threading.Event()
        self._seconds: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def slow(self) -> float:
        """Seconds that 99 of 100 answers took at most."""
        self._end.set()
        self._thread.join()
        return sorted(self._seconds)[len(self._seconds) * 99 // 100]

    def _run(self) -> None:
        while not self._end.wait(0.005) or not self._seconds:
            started = time.perf_counter()
            self._connection.request("GET", "/health")
            response = self._connection.getresponse()
            response.read()
            assert response.status == 200
            self._seconds.append(time.perf_counter() - started)
            if not self._keep:
                self._connection.close()
        self._connection.close()

"""Long work on one thread leaves the others, and so every event loop, free to go on."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import load, resolve

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

"""`LLM`: the blocking face, for scripts and notebooks. The engine lives on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from ssd_runtime.engine.thread import LoopThread
from ssd_runtime.errors import EngineClosedError
from ssd_runtime.faces import AnsweringEngine, requests_ahead
from ssd_runtime.types import Answer, Output, Request, SamplingParams

Result = TypeVar("Result")


class LLM:
    """A model that answers, without `async`; a context manager, and `close` ends it too.

    with LLM("engine.yaml") as llm:
        print(llm.generate("Why is the sky blue?")[0].text)

    Works where an event loop is running already (a notebook), and from several threads at once.
    """

    def __init__(
        self,
        config: str | Path | None = None,
        overrides: Sequence[str] = (),
        *,
        engine: Callable[[], AnsweringEngine] | None = None,
    ) -> None:
        """Load the model; raises `ConfigError` or `ModelError`.

        config, overrides: as `Engine.from_config` takes them. engine: makes the engine instead.
        """
        self._engine = engine() if engine else _configured(config, overrides)
        self._thread = LoopThread("ssd-llm")
        self._lock = threading.Lock()
        self._closed = False
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()
        self._thread.start(_serve(self._engine, started))
        self._loop, self._closing = started.result()

    def generate(
        self, prompts: str | Request | Sequence[str | Request], params: SamplingParams | None = None
    ) -> list[Answer]:
        """Answers in the order of `prompts`, computed together; `params` are for the plain texts among them.

        Raises the first error that a request meets; the others are cancelled then.
        """
        requests = [prompts] if isinstance(prompts, str | Request) else list(prompts)
        return self._run(_complete_all(self._engine, requests, params))

    def stream(self, prompt: str | Request, params: SamplingParams | None = None) -> Iterator[Output]:
        """The answer piece by piece; leaving the iteration early cancels the request."""
        pieces = self._engine.generate(prompt, params)
        try:
            while (piece := self._run(_next(pieces))) is not None:
                yield piece
        finally:
            if not self._closed:
                self._run(_end(pieces))

    def close(self) -> None:
        """Cancel what is running and free the model; a second call does nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._thread.tell(self._closing.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = self._submit(work)
        try:
            return future.result()
        except CancelledError:
            raise EngineClosedError("the LLM was closed while it was answering") from None
        finally:
            future.cancel()  # matters when this thread was interrupted: the work ends too

    def _submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        # Under the lock, so that work is on the loop before the order to close is, or not at all.
        with self._lock:
            if self._closed:
                work.close()
                raise EngineClosedError("the LLM is closed; make a new one")
            return asyncio.run_coroutine_threadsafe(work, self._loop)


def _configured(config: str | Path | None, overrides: Sequence[str]) -> AnsweringEngine:
    from ssd_runtime.app import Engine

    return Engine.from_config(config, overrides=overrides)


async def _serve(
    engine: AnsweringEngine, started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]
) -> None:
    """Hold the engine open until the event that `started` gives is set."""
    closing = asyncio.Event()
    try:
        async with engine:
            started.set_result((asyncio.get_running_loop(), closing))
            await closing.wait()
            await _cancel_others()
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _next(pieces: AsyncGenerator[Output, None]) -> Output | None:
    return await anext(pieces, None)


async def _end(pieces: AsyncGenerator[Output, None]) -> None:
    await pieces.aclose()


async def _complete_all(
    engine: AnsweringEngine, requests: Sequence[str | Request], params: SamplingParams | None
) -> list[Answer]:
    slots = asyncio.Semaphore(requests_ahead(engine.settings))

    async def complete(request: str | Request) -> Answer:
        async with slots:
            return await engine.complete(request, params)

    tasks = [asyncio.create_task(complete(request)) for request in requests]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()

"""`FakeEngine`: an engine that answers from a script, for tests of whatever stands around an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ssd_runtime.errors import EngineClosedError
from ssd_runtime.faces import answer_of
from ssd_runtime.settings.difference import Difference
from ssd_runtime.settings.schema import Settings
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.types import Answer, FinishReason, Output, Request, SamplingParams, SpeculationStats, Timing

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer

Step = str | Exception | asyncio.Event
Script = Callable[[Request], Iterable[Step]]
TIMING = Timing(queue_seconds=0.25, first_token_seconds=0.5, decode_seconds=1.5, total_seconds=2.0)


def prompt_text(request: Request) -> str:
    """What the request asks, whatever form it came in."""
    if request.messages is not None:
        return request.messages[-1].content
    return request.prompt or str(request.prompt_token_ids)


def prompt_ids(request: Request) -> tuple[int, ...]:
    """The ids of that text: its bytes."""
    return tuple(prompt_text(request).encode())


def echo(request: Request) -> Iterable[Step]:
    """The script that answers with the prompt, a word a piece."""
    first, *rest = prompt_text(request).split(" ")
    return [first, *(f" {word}" for word in rest)]


class FakeEngine:
    """Has the face of `Engine`; `script(request)` says what happens.

    A text is one piece of the answer and one token, an exception is raised, an `asyncio.Event` is
    waited for. `requests`, `finished` and `cancelled` (ids) record what happened, `most_running`
    how many requests ran at once.
    """

    def __init__(self, script: Script = echo, settings: Settings | None = None, context: int = 1000) -> None:
        self.settings = settings or Settings()
        self.max_context = context
        self.draft_weight_bytes = 0
        self.requests: list[Request] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.most_running = 0
        self.is_open = False
        self.is_alive = True
        self.parts = {"draft": "ok"}
        self.difference: Difference | Exception = Difference()
        self._script = script

    async def __aenter__(self) -> Self:
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_open = False

    @property
    def tokenizer(self) -> Tokenizer:
        """A token per character."""
        from ssd_runtime.testing.toy import ToyTokenizer  # loads torch, which most tests do without

        return ToyTokenizer(96)

    def snapshot(self) -> EngineSnapshot:
        """As many run as are being answered."""
        return EngineSnapshot(running=self.running, parts=self.parts)

    async def reload(self) -> Difference:
        """What `difference` says: a `Difference`, or an error that is raised."""
        if isinstance(self.difference, Exception):
            raise self.difference
        return self.difference

    async def generate(
        self, request: Request | str, params: SamplingParams | None = None
    ) -> AsyncGenerator[Output, None]:
        """The script's pieces; the last one is empty and has the finish reason."""
        request = self._admit(request, params)
        tokens = 0
        ended = False
        try:
            for step in self._script(request):
                await asyncio.sleep(0)
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    ended = True
                    raise step
                else:
                    tokens += 1
                    prompt = prompt_ids(request) if tokens == 1 else ()
                    yield Output(request.id, step, (tokens,), prompt_token_ids=prompt)
            ended = True
            self.finished.append(request.id)
            yield self._last(request, tokens)
        finally:
            self.running -= 1
            if not ended:
                self.cancelled.append(request.id)

    async def complete(self, request: Request | str, params: SamplingParams | None = None) -> Answer:
        """All pieces of `generate` as one answer."""
        async with aclosing(self.generate(request, params)) as stream:
            pieces = [piece async for piece in stream]
        return answer_of(pieces)

    def _admit(self, request: Request | str, params: SamplingParams | None) -> Request:
        if not self.is_open:
            raise EngineClosedError("the engine is not running; use it inside `async with`")
        if isinstance(request, str):
            request = Request(f"request-{len(self.requests)}", request, params=params or SamplingParams())
        self.requests.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        return request

    def _last(self, request: Request, tokens: int) -> Output:
        return Output(
            request.id,
            "",
            (),
            finish_reason=FinishReason.STOP,
            prompt_token_ids=prompt_ids(request),
            seed=request.params.seed or 0,
            timing=TIMING,
            speculation=SpeculationStats(rounds=tokens),
        )

"""The state of the daemon between HTTP and the engine: admission, stopping, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from starlette.types import Receive

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.errors import EngineClosedError, QueueFullError, RequestError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.server.accounts import Account
from ssd_runtime.server.lifetime import Reason, ending_early
from ssd_runtime.settings.difference import Difference
from ssd_runtime.settings.request import default_params
from ssd_runtime.settings.schema import Settings
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.telemetry.metrics import Metrics
from ssd_runtime.telemetry.spans import Spans
from ssd_runtime.types import FinishReason, Output, Request, SamplingParams, StructuredOutput, StructureKind

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer  # loads torch, which the door must not

log = structlog.get_logger(__name__)

WARM_UP_TOKENS = 8
WARM_UP_STRUCTURE = StructuredOutput(StructureKind.REGEX, "[a-z]+")
LAST_WORDS_SECONDS = 2.0
"""How long cancelled requests may take to tell their clients."""


class ServedEngine(AnsweringEngine, Protocol):
    """What the daemon uses of `Engine`."""

    @property
    def is_alive(self) -> bool: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    def snapshot(self) -> EngineSnapshot: ...
    async def reload(self) -> Difference: ...


DEGRADED, FAILED = "degraded", "failed"


class Phase(StrEnum):
    """Where the daemon is in its life."""

    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"


class Service:
    """One engine being served. Lives on the server's loop."""

    def __init__(self, settings: Settings, clock: Clock = monotonic) -> None:
        self.settings = settings
        self.model = settings.engine.model
        self.phase = Phase.LOADING
        self.progress = "starting"
        self.tell: Callable[[str], None] = lambda progress: None
        self.metrics = Metrics(self.model, self.snapshot)
        self.spans: Spans | None = None
        self.active = 0
        self._asking = 0
        self._engine: ServedEngine | None = None
        self._clock = clock
        self._stop: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_alive(self) -> bool:
        """Whether the engine works, or is on its way to."""
        return self._engine is None or self._engine.is_alive

    @property
    def max_context(self) -> int | None:
        """Tokens of one request, prompt and completion; None while loading."""
        return None if self._engine is None else self._engine.max_context

    @property
    def tokenizer(self) -> Tokenizer:
        """The served model's; raises `EngineClosedError` where there is none yet."""
        self.check_admits()
        assert self._engine is not None
        return self._engine.tokenizer

    def snapshot(self) -> EngineSnapshot:
        """The engine's, or an empty one where there is none."""
        return EngineSnapshot() if self._engine is None else self._engine.snapshot()

    def report(self, what: str, done: int, total: int) -> None:
        """Take news of the loading, from any thread."""
        self.progress = f"{what} ({done} of {total})" if total else what
        self.tell(self.progress)

    def status(self) -> dict[str, Any]:
        """What `/ready` tells. `degraded` is ready too, though parts of the engine are out of service."""
        if (refusal := self._refusal()) is not None:
            return {"status": refusal[0], "model": self.model, "reason": refusal[1]}
        now = self.snapshot()
        reason = {"reason": "; ".join(f"{name}: {now.parts[name]}" for name in now.troubles)}
        return {
            "status": DEGRADED if now.troubles else self.phase.value,
            "model": self.model,
            "max_model_len": self.max_context,
            "mode": self.settings.scheduler.policy.value,
            "parts": dict(now.parts),
        } | (reason if now.troubles else {})

    async def use(self, engine: ServedEngine) -> None:
        """Serve with `engine`, once it has answered a first request."""
        self.report("warming up", 0, 0)
        length = min(WARM_UP_TOKENS, engine.max_context - 1)
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        await engine.complete(Request("warm-up", prompt_token_ids=(0,), params=params))
        with suppress(RequestError):  # some models cannot; those that can keep what the first one makes
            params = replace(params, ignore_eos=False, logprobs=0, structured_outputs=WARM_UP_STRUCTURE)
            await engine.complete(Request("warm-up", prompt_token_ids=(0,), params=params))
        self._engine = engine
        self._stop = asyncio.get_running_loop().create_future()
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    async def reload(self) -> Difference:
        """Let the engine follow its configuration; raises as `Engine.reload`, and where nothing is served."""
        self.check_admits()
        assert self._engine is not None
        found = await self._engine.reload()
        self.settings = self._engine.settings
        return found

    def check_admits(self) -> None:
        """Raise `EngineClosedError` when no request can be taken."""
        if (refusal := self._refusal()) is not None:
            raise EngineClosedError(f"the server takes no requests: {refusal[0]}, {refusal[1]}")

    def _refusal(self) -> tuple[str, str] | None:
        """The status in which no request can be taken, and why; None where they can."""
        if not self.is_alive:
            return FAILED, "the engine has stopped or no longer answers; see the log"
        if self.phase is Phase.READY:
            return None
        return self.phase.value, self.progress if self.phase is Phase.LOADING else "a stop was asked for"

    def default_params(self) -> SamplingParams:
        """The sampling of requests that do not say."""
        return default_params(self.settings.engine)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """While somebody asks: raises `EngineClosedError`, or `QueueFullError` where too many do."""
        self.check_admits()
        most = self.settings.scheduler.max_queue + self.settings.engine.max_batch_size
        if self._asking >= most:
            raise QueueFullError(
                f"{most} requests are served already (scheduler.max_queue and engine.max_batch_size)"
            )
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    @asynccontextmanager
    async def serving(self, receive: Receive) -> AsyncIterator[Reason]:
        """While a request is served: it is counted, watched, and ended early where it must be."""
        self.check_admits()
        assert self._stop is not None
        self.active += 1
        self._idle.clear()
        try:
            async with ending_early(receive, self._stop, self.settings.server.request_timeout) as reason:
                yield reason
        finally:
            self.active -= 1
            if not self.active:
                self._idle.set()

    async def pieces(self, request: Request, headers: Mapping[str, str]) -> AsyncGenerator[Output, None]:
        """The pieces of an answer, counted; raises what the engine raises. headers: of the HTTP request."""
        assert self._engine is not None
        reason = FinishReason.ERROR
        account = Account(request, headers, self.metrics, self.spans, self._clock)
        try:
            async with aclosing(self._engine.generate(request)) as stream:
                async for piece in stream:
                    account.add(piece)
                    reason = piece.finish_reason or reason
                    if reason is FinishReason.CANCELLED:
                        raise EngineClosedError("the engine was closed before the answer was finished")
                    yield piece
        except (asyncio.CancelledError, GeneratorExit):
            reason = FinishReason.CANCELLED if reason is FinishReason.ERROR else reason
            raise
        finally:
            account.close(reason)

    async def drain(self, seconds: float) -> int:
        """Take no more requests, wait for those there are, cancel the rest; how many those were."""
        self.phase = Phase.STOPPING
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except TimeoutError:
            cancelled = self.active
        else:
            return 0
        assert self._stop is not None
        self._stop.set_result(None)
        with suppress(TimeoutError):  # a client that reads nothing is not waited for
            await asyncio.wait_for(self._idle.wait(), LAST_WORDS_SECONDS)
        return cancelled

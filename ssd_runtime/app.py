"""`Engine`: the library's face. It owns the engine's thread; callers may live in any loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Self

from ssd_runtime.build import LoadModel, Progress, build, load_configured_model, no_progress
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.prepare import prepare_choices
from ssd_runtime.engine.target_lane import FAILING
from ssd_runtime.engine.thread import LoopThread
from ssd_runtime.errors import EngineClosedError, RequestError, SSDError
from ssd_runtime.faces import answer_of
from ssd_runtime.models.spelling import spelled
from ssd_runtime.models.tokenizer import Tokenizer
from ssd_runtime.parts import Parts
from ssd_runtime.reload import reload
from ssd_runtime.settings.difference import Difference
from ssd_runtime.settings.load import Loaded, load_settings
from ssd_runtime.settings.schema import Settings
from ssd_runtime.snapshots import EngineSnapshot
from ssd_runtime.telemetry.log import provide_logging
from ssd_runtime.telemetry.trace import RecordSink
from ssd_runtime.types import Answer, FinishReason, Mode, Output, Request, SamplingParams

CLOSE_SECONDS = 30.0
SILENT_SECONDS = 20.0
"""How long the engine's loop may be blocked before it counts as dead."""


class Engine:
    """A model that answers requests, as an async context manager.

    async with Engine.from_config("engine.yaml") as engine:
        async for piece in engine.generate("Why is the sky blue?"):
            print(piece.text, end="")

    Entering loads the model and may raise `ConfigError` or `ModelError`. Several engines may live
    in one process.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        progress: Progress = no_progress,
        trace: Path | RecordSink | None = None,
        load_model: LoadModel = load_configured_model,
        plugins: Sequence[object] = (),
    ) -> None:
        """`trace`: a file for Chrome trace events, or what takes the records itself.

        load_model: where models come from (tests).

        plugins: objects with hooks, registered after those that are installed or configured.
        """
        provide_logging(loaded.settings.log)
        self._loaded = loaded
        self._progress = progress
        self._trace = trace
        self._load_model = load_model
        self._plugins = tuple(plugins)
        self._parts: Parts | None = None
        self._thread = LoopThread("ssd-engine")
        self._numbers = itertools.count()
        self._reloading = threading.Lock()

    @classmethod
    def from_config(
        cls,
        path: str | Path | None = None,
        *,
        overrides: Sequence[str] = (),
        progress: Progress = no_progress,
        trace: Path | None = None,
    ) -> Engine:
        """An engine that is not started yet; `path` None takes the embedded default configuration.

        overrides: `key=value` strings, as `--set` takes them. Raises `ConfigError`.
        """
        loaded = load_settings(Path(path) if path is not None else None, overrides)
        return cls(loaded, progress=progress, trace=trace)

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self._loaded.settings

    @property
    def max_context(self) -> int:
        """Tokens of prompt and completion together that one request may have."""
        return self._running.limits.context

    @property
    def draft_weight_bytes(self) -> int:
        """Bytes that the draft's weights occupy; 0 without a draft model."""
        return self._running.speculation.weight_bytes

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; callable from any thread. A long text takes a while."""
        return self._running.tokenizer

    @property
    def is_alive(self) -> bool:
        """Whether the engine's loop is running and beats, and its target has not failed for good."""
        if not self._thread.is_alive or self._thread.silence > SILENT_SECONDS:
            return False
        return self._parts is None or self._parts.core.target.status != FAILING

    def snapshot(self) -> EngineSnapshot:
        """What the engine is doing; callable from any thread."""
        return self._running.snapshot()

    async def __aenter__(self) -> Self:
        self._parts = await asyncio.to_thread(
            build, self._loaded, self._load_model, self._progress, self._trace, self._plugins
        )
        self._thread.start(self._parts.run(), self._parts.core.beat)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts, self._parts = self._running, None
        self._thread.tell(parts.core.close)
        await asyncio.to_thread(self._thread.join, CLOSE_SECONDS)
        await asyncio.to_thread(parts.close)

    async def reload(self, loaded: Loaded | None = None) -> Difference:
        """Follow `loaded`, as far as a running engine can; None reads the configuration's sources again.

        Requests go on meanwhile: what guesses is made beside what is in use, and takes its place between
        two rounds. Says what is different now, and what needs a restart. Raises what the start would:
        `ConfigError`, `ModelError` or `PluginError`; then nothing has changed.
        """
        return await asyncio.to_thread(self._reload, loaded)

    def _reload(self, loaded: Loaded | None) -> Difference:
        with self._reloading:
            wanted = self._loaded.again() if loaded is None else loaded
            self._loaded, found = reload(
                self._running, self._loaded, wanted, plugins=self._plugins, call=self._thread.call
            )
        return found

    async def generate(
        self, request: Request | str, params: SamplingParams | None = None
    ) -> AsyncGenerator[Output, None]:
        """Yield the answer piece by piece; leaving the iteration early cancels the request.

        Raises `RequestError` for a wrong request, `EngineError` when the engine cannot serve it.
        """
        request = self._request(request, params)
        parts = self._running
        _check_speculation(request, parts)
        prepared = await asyncio.to_thread(prepare_choices, request, parts.tokenizer, parts.limits)
        spellings = await asyncio.to_thread(parts.tokenizer.spellings) if _tells_logprobs(request) else ()
        pieces: asyncio.Queue[Output | SSDError] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def listen(piece: Output | SSDError) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        mode, weights = self._mode(request), parts.speculation.weight_bytes
        for index, (sequence, end) in enumerate(prepared):
            live = LiveRequest(sequence, end, listen, mode, weights, parts.clock(), index=index)
            self._thread.call(parts.core.submit, live)
        left = len(prepared)
        try:
            while left:
                piece = await pieces.get()
                if not isinstance(piece, Output):
                    left -= 1
                    raise piece
                left -= piece.finish_reason is not None
                yield spelled(piece, spellings) if spellings else piece
        finally:
            if left:
                for sequence, _ in prepared:
                    self._thread.tell(parts.core.cancel, sequence)

    async def complete(self, request: Request | str, params: SamplingParams | None = None) -> Answer:
        """The whole answer at once; raises as `generate` does."""
        async with aclosing(self.generate(request, params)) as pieces:
            answer = answer_of([piece async for piece in pieces])
        if any(each.finish_reason is FinishReason.CANCELLED for each in answer.every):
            raise EngineClosedError("the request was cancelled before it was finished")
        return answer

    @property
    def _running(self) -> Parts:
        if self._parts is None:
            raise EngineClosedError("the engine is not running; use it inside `async with`")
        return self._parts

    def _request(self, request: Request | str, params: SamplingParams | None) -> Request:
        if isinstance(request, Request):
            return request
        engine = self.settings.engine
        defaults = SamplingParams(temperature=engine.temperature, top_p=engine.top_p)
        return Request(id=f"request-{next(self._numbers)}", prompt=request, params=params or defaults)

    def _mode(self, request: Request) -> str:
        wanted = request.speculation
        if not wanted.enabled:
            return Mode.AUTOREGRESSIVE
        return wanted.mode or self.settings.scheduler.policy


def _tells_logprobs(request: Request) -> bool:
    return request.params.logprobs is not None or request.params.prompt_logprobs is not None


def _check_speculation(request: Request, parts: Parts) -> None:
    if request.prediction is not None and not (parts.has_draft and request.speculation.enabled):
        raise RequestError(
            "prediction: got one, but nothing is drafted here that it could help; expected an engine with "
            "another scheduler.policy and engine.draft_model, and speculation.enabled",
            "prediction",
        )
    wanted = request.speculation.mode
    if wanted in (Mode.SPECULATIVE, Mode.SSD) and not parts.has_draft:
        raise RequestError(
            f"speculation.mode: got {wanted.value!r}, but this engine runs without a draft; expected "
            "'autoregressive', or an engine with another scheduler.policy and engine.draft_model",
            "speculation.mode",
        )

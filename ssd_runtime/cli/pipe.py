"""`ssd-run pipe`: prompts in, answers out, in the order of the input.

Lines are read, parsed and submitted a bounded number ahead; a writer takes the jobs in order. Both
formats share that path, and so do good lines and bad ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ssd_runtime.cli.formats import Format, JsonLinesFormat, TextFormat
from ssd_runtime.cli.options import ConfigOption, ModeOption, SetOption, TraceOption, load
from ssd_runtime.cli.progress import WaitLine, wait_line
from ssd_runtime.cli.running import configured_engine, descriptor, note, run, started
from ssd_runtime.cli.sampling import (
    IgnoreEosOption,
    MaxTokensOption,
    MinPOption,
    SeedOption,
    StopOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    sampling,
)
from ssd_runtime.cli.streams import OutputClosedError, OutputStream, read_lines
from ssd_runtime.cli.summary import Summary
from ssd_runtime.clock import monotonic
from ssd_runtime.errors import EngineClosedError, RequestError, SSDError
from ssd_runtime.faces import AnsweringEngine, answer_of, requests_ahead
from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.request import parse_request, readable_id
from ssd_runtime.types import Output, Request, SamplingParams


class FormatName(StrEnum):
    """The forms that `--format` offers."""

    TEXT = "text"
    JSONL = "jsonl"


@dataclass(frozen=True, slots=True)
class Job:
    """One line of input: its place, its id as it was given, and what comes of it."""

    index: int
    request_id: object
    pieces: asyncio.Queue[Output | SSDError | None] = field(default_factory=asyncio.Queue)


class Pipe:
    """Answers lines with an engine; one object for one run."""

    def __init__(
        self,
        engine: AnsweringEngine,
        form: Format,
        output: OutputStream,
        *,
        defaults: SamplingParams,
        seed: int | None = None,
        summary: Summary,
        line: WaitLine,
    ) -> None:
        self._engine = engine
        self._format = form
        self._output = output
        self._defaults = defaults
        self._seed = seed
        self._summary = summary
        self._wait_line = line
        self._jobs: asyncio.Queue[Job | None] = asyncio.Queue()
        self._slots = asyncio.Semaphore(requests_ahead(engine.settings))
        self._submitted = 0
        self._input_ended = False

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Answer every line. Raises `OutputClosedError`, or `SSDError` when it cannot go on."""
        try:
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(self._output.wait_closed())
                tasks.create_task(self._submit_all(lines, tasks))
                await self._write_all()
                watch.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _submit_all(self, lines: AsyncIterator[bytes], tasks: asyncio.TaskGroup) -> None:
        async for line in lines:
            await self._slots.acquire()
            self._submit(line, tasks)
        self._input_ended = True
        self._jobs.put_nowait(None)

    def _submit(self, line: bytes, tasks: asyncio.TaskGroup) -> None:
        index, self._submitted = self._submitted, self._submitted + 1
        job, request = self._job(index, line)
        self._jobs.put_nowait(job)
        if request is not None:
            tasks.create_task(self._answer(job, request))

    def _job(self, index: int, line: bytes) -> tuple[Job, Request | None]:
        """The job of a line, and its request; a line that is wrong is a job that has failed already."""
        request_id: object = None
        try:
            body = self._format.body(line)
            request_id = readable_id(body, index)
            request = parse_request(body, index=index, defaults=self._defaults, seed=self._seed)
        except RequestError as error:
            job = Job(index, request_id)
            job.pieces.put_nowait(error)
            return job, None
        return Job(index, request_id), request

    async def _answer(self, job: Job, request: Request) -> None:
        try:
            async for piece in self._engine.generate(request):
                job.pieces.put_nowait(piece)
            job.pieces.put_nowait(None)
        except SSDError as error:
            job.pieces.put_nowait(error)
        except Exception as error:  # the other lines still have answers to come
            job.pieces.put_nowait(SSDError(f"internal error: {type(error).__name__}: {error}"))

    async def _write_all(self) -> None:
        while (job := await self._jobs.get()) is not None:
            self._report()
            await self._write(job)
            self._slots.release()
            self._wait_line.clear()

    async def _write(self, job: Job) -> None:
        pieces: list[Output] = []
        shown = 0
        try:
            while (piece := await _next_piece(job)) is not None:
                pieces.append(piece)
                if self._is_streaming():
                    await self._show(pieces[shown:])
                    shown = len(pieces)
            answer = answer_of(pieces)
        except SSDError as error:
            await self._write_error(job, error)
        else:
            self._summary.add(answer)
            await self._output.write(f"{'' if shown else self._format.answer(job.request_id, answer)}\n")

    async def _write_error(self, job: Job, error: SSDError) -> None:
        if isinstance(error, EngineClosedError):
            raise error
        self._summary.add_failure()
        self._wait_line.clear()
        await self._output.write(f"{self._format.error(job.request_id, job.index, error)}\n")

    async def _show(self, pieces: list[Output]) -> None:
        self._wait_line.clear()
        await self._output.write("".join(piece.text for piece in pieces))

    def _is_streaming(self) -> bool:
        only_one = self._input_ended and self._submitted == 1
        return self._format.streams and (self._output.is_terminal or only_one)

    def _report(self) -> None:
        self._wait_line("waiting for answers", self._summary.answered + self._summary.failed, 0)


async def _next_piece(job: Job) -> Output | None:
    piece = await job.pieces.get()
    if isinstance(piece, SSDError):
        raise piece
    return piece


async def run_pipe(
    make: Callable[[], AnsweringEngine],
    form: Format,
    *,
    stdin: int,
    stdout: int,
    defaults: SamplingParams,
    seed: int | None = None,
    line: WaitLine | None = None,
    complain: Callable[[str], None] = note,
) -> int:
    """Answer the lines of the descriptor `stdin` on `stdout` with the engine that `make` gives.

    Returns the exit status.
    """
    line = line or wait_line(complain)
    summary = Summary(monotonic, form.errors_in)
    output = OutputStream(stdout)
    async with started(make, line) as engine:
        summary.start()
        pipe = Pipe(engine, form, output, defaults=defaults, seed=seed, summary=summary, line=line)
        try:
            await pipe.run(read_lines(stdin))
        except OutputClosedError:
            return 0
        finally:
            line.clear()
    if summary.answered or summary.failed:
        complain(str(summary))
    return 1 if summary.failed else 0


def pipe(
    config: ConfigOption = None,
    overrides: SetOption = None,
    mode: ModeOption = None,
    trace: TraceOption = None,
    form: Annotated[
        FormatName, typer.Option("--format", help="A prompt a line, or a JSON object a line.")
    ] = FormatName.TEXT,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text; apply no chat template (text format).")
    ] = False,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
    top_k: TopKOption = None,
    min_p: MinPOption = None,
    stop: StopOption = None,
    ignore_eos: IgnoreEosOption = False,
) -> None:
    """Answer the prompts on stdin, one a line, on stdout."""
    loaded = load(config, overrides, mode)
    defaults = sampling(
        loaded.settings,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        stop=stop,
        ignore_eos=ignore_eos,
        seed=seed,
    )
    chosen = JsonLinesFormat() if form is FormatName.JSONL else TextFormat(note, raw=raw)
    raise typer.Exit(run(_work(loaded, trace, chosen, defaults)))


def _work(
    loaded: Loaded, trace: Path | None, form: Format, defaults: SamplingParams
) -> Coroutine[Any, Any, int]:
    line = wait_line(note)
    return run_pipe(
        partial(configured_engine, loaded, line, trace),
        form,
        stdin=descriptor("stdin"),
        stdout=descriptor("stdout"),
        defaults=defaults,
        seed=defaults.seed,
        line=line,
    )

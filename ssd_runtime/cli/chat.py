"""`ssd-run chat`: a conversation on the terminal, or over a pipe.

Ctrl-C stops the answer that is being written, Ctrl-D ends the conversation.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import typer

from ssd_runtime.cli.formats import decoded
from ssd_runtime.cli.options import ConfigOption, ModeOption, SetOption, TraceOption, load
from ssd_runtime.cli.progress import WaitLine, wait_line
from ssd_runtime.cli.running import INTERRUPTED, configured_engine, descriptor, note, run, started
from ssd_runtime.cli.sampling import MaxTokensOption, SeedOption, TemperatureOption, TopPOption, sampling
from ssd_runtime.cli.streams import OutputClosedError, OutputStream, read_lines
from ssd_runtime.errors import ContextLengthError, EngineClosedError, RequestError, SSDError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.types import Message, Request, SamplingParams

USER, ASSISTANT = "user", "assistant"
ANSWER_TOKENS = 1024
HELP = "/reset forgets the conversation, /exit (or Ctrl-D) ends it, Ctrl-C stops an answer"


class Chat:
    """One conversation: its turns, and the answer being written."""

    def __init__(
        self,
        engine: AnsweringEngine,
        output: OutputStream,
        params: SamplingParams,
        *,
        line: WaitLine,
        tell: Callable[[str], None],
    ) -> None:
        self.turns: list[Message] = []
        self._engine = engine
        self._output = output
        self._params = params
        self._line = line
        self._tell = tell
        self._answering: asyncio.Task[None] | None = None
        self._text = ""

    async def handle(self, line: bytes) -> bool:
        """Do what one line of input says; False when it ends the conversation."""
        try:
            text = decoded(line).strip()
        except RequestError as error:
            self._tell(str(error))
            return True
        if text == "/exit":
            return False
        if text == "/reset":
            self.turns.clear()
        elif text.startswith("/"):
            self._tell(HELP)
        elif text:
            await self.say(text)
        return True

    async def say(self, text: str) -> None:
        """Write the answer to `text`; what goes wrong is told, and the turn forgotten."""
        self.turns.append(Message(USER, text))
        answer = self._answering = asyncio.create_task(self._answer())
        try:
            await asyncio.wait({answer})
        finally:
            answer.cancel()
            self._answering = None
            self._line.clear()
        await self._keep(None if answer.cancelled() else answer.exception())

    def interrupt(self) -> bool:
        """Stop the answer being written; False when there is none."""
        if self._answering is None:
            return False
        return self._answering.cancel()

    async def _answer(self) -> None:
        while True:
            try:
                return await self._write_answer()
            except ContextLengthError:
                if len(self.turns) == 1:
                    raise
                self._forget_oldest()

    async def _write_answer(self) -> None:
        self._text = ""
        self._line("waiting for the answer", 0, 0)
        request = Request("chat", messages=tuple(self.turns), params=self._params)
        async for piece in self._engine.generate(request):
            self._line.clear()
            self._text += piece.text
            await self._output.write(piece.text)

    async def _keep(self, error: BaseException | None) -> None:
        """End the turn: keep what was answered, forget a question that got nothing."""
        if error and (isinstance(error, EngineClosedError) or not isinstance(error, SSDError)):
            raise error
        if self._text or not error:
            await self._output.write("\n")
        if error:
            self._tell(str(error))
        if error or not self._text:
            self.turns.pop()
        else:
            self.turns.append(Message(ASSISTANT, self._text))

    def _forget_oldest(self) -> None:
        """Drop the oldest question and its answer."""
        del self.turns[0]
        if self.turns[0].role == ASSISTANT:
            del self.turns[0]
        self._tell("the context is full: the oldest turn is forgotten")


async def run_chat(
    make: Callable[[], AnsweringEngine],
    *,
    stdin: int,
    stdout: int,
    params: SamplingParams,
    line: WaitLine | None = None,
    tell: Callable[[str], None] = note,
    prompt: Callable[[], None] = lambda: None,
) -> int:
    """Converse on two descriptors until the input ends; gives the exit status. `prompt` asks for a line."""
    line = line or wait_line(tell)
    output = OutputStream(stdout)
    async with started(make, line) as engine:
        if params.max_tokens is None:
            params = replace(params, max_tokens=min(ANSWER_TOKENS, engine.max_context // 2))
        chat = Chat(engine, output, params, line=line, tell=tell)
        conversation = asyncio.create_task(_converse(chat, read_lines(stdin), prompt))

        def interrupt() -> None:
            if chat.interrupt():
                return
            if os.isatty(stdin):
                tell(f"\n{HELP}")
                prompt()
            else:
                conversation.cancel()

        with _interrupts(interrupt):
            await asyncio.wait({conversation})
    return _status(conversation)


async def _converse(chat: Chat, lines: AsyncIterator[bytes], prompt: Callable[[], None]) -> None:
    prompt()
    async for line in lines:
        if not await chat.handle(line):
            return
        prompt()


def _status(conversation: asyncio.Task[None]) -> int:
    if conversation.cancelled():
        return INTERRUPTED
    error = conversation.exception()
    if error and not isinstance(error, OutputClosedError):
        raise error
    return 0


@contextmanager
def _interrupts(handler: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `handler` on the loop while the body runs."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, handler)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _ask() -> None:
    """The prompt goes to stderr: stdout carries answers only."""
    sys.stderr.write("> ")
    sys.stderr.flush()


def chat(
    config: ConfigOption = None,
    overrides: SetOption = None,
    mode: ModeOption = None,
    trace: TraceOption = None,
    seed: SeedOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    top_p: TopPOption = None,
) -> None:
    """Converse with the model."""
    loaded = load(config, overrides, mode)
    params = sampling(loaded.settings, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    stdin, stdout = descriptor("stdin"), descriptor("stdout")
    line = wait_line(note)
    make = partial(configured_engine, loaded, line, trace)
    is_terminal = os.isatty(stdin) and sys.stderr is not None
    work = run_chat(
        make,
        stdin=stdin,
        stdout=stdout,
        params=params,
        line=line,
        prompt=_ask if is_terminal else lambda: None,
    )
    raise typer.Exit(run(work))

"""`ssd-run chat`: a conversation on the terminal, or over a pipe.

Ctrl-C stops the answer that is being written, Ctrl-D ends the conversation. On a terminal with colours
the text that the draft had written is tinted.
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
from ssd_runtime.cli.questions import QuestionReader
from ssd_runtime.cli.rounds import NO_FIGURES, DraftedText, Rounds, Tint, figures, terminal_tint
from ssd_runtime.cli.running import INTERRUPTED, configured_engine, descriptor, note, run, started
from ssd_runtime.cli.sampling import MaxTokensOption, SeedOption, TemperatureOption, TopPOption, sampling
from ssd_runtime.cli.streams import OutputClosedError, OutputStream, read_lines
from ssd_runtime.errors import ContextLengthError, EngineClosedError, RequestError, SSDError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.types import Message, Output, Request, SamplingParams

USER, ASSISTANT = "user", "assistant"
ANSWER_TOKENS = 1024
LEAVE = ("/exit", "/quit")
STOPPED = "the last answer was stopped before its end; these are the figures of the last whole one"
HELP = (
    "/reset forgets the conversation, /stats tells of the last answer, /exit (or Ctrl-D) ends it,\n"
    'Ctrl-C stops an answer; a line that ends in \\ goes on in the next, and """ begins and ends many lines'
)


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
        rounds: Rounds | None = None,
        tint: Tint | None = None,
    ) -> None:
        """rounds: hears of the engine's rounds. tint: colours text that was drafted; None leaves it plain."""
        self.turns: list[Message] = []
        self._engine = engine
        self._output = output
        self._params = params
        self._line = line
        self._tell = tell
        self._rounds = rounds or Rounds()
        self._tint = tint
        self._question = QuestionReader()
        self._answering: asyncio.Task[None] | None = None
        self._pieces: list[Output] = []
        self._figures = NO_FIGURES
        self._is_stopped = False
        self._asked = 0

    async def handle(self, line: bytes) -> bool:
        """Do what one line of input says; False when it ends the conversation."""
        try:
            text = decoded(line)
        except RequestError as error:
            self._tell(str(error))
            return True
        if not self.is_open and text.lstrip().startswith("/"):
            return self._obey(text.strip())
        if question := self._question.push(text):
            await self.say(question)
        return True

    @property
    def is_open(self) -> bool:
        """Whether the question goes on in the next line."""
        return self._question.is_open

    async def end(self) -> None:
        """The input has ended; a question that is still open is asked as it stands."""
        if question := self._question.finish():
            await self.say(question)

    def drop(self) -> None:
        """Forget the question that is still open."""
        self._question.finish()

    def _obey(self, command: str) -> bool:
        if command == "/reset":
            self.turns.clear()
        elif command == "/stats":
            self._tell(self._stats())
        elif command == "/help":
            self._tell(HELP)
        elif command not in LEAVE:
            self._tell(f"unknown command {command}\n{HELP}")
        return command not in LEAVE

    def _stats(self) -> str:
        """The figures of the last answer that is whole."""
        is_older = self._is_stopped and self._figures != NO_FIGURES
        return f"{STOPPED}\n{self._figures}" if is_older else self._figures

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
        self._pieces = []
        self._is_stopped = True
        self._line("waiting for the answer", 0, 0)
        self._asked += 1
        request = Request(f"chat-{self._asked}", messages=tuple(self.turns), params=self._params)
        self._rounds.follow(request.id)
        drafted = DraftedText(self._engine.tokenizer, self._tint) if self._tint else None
        async for piece in self._engine.generate(request):
            self._line.clear()
            self._pieces.append(piece)
            accepted = self._rounds.accepted(piece)
            await self._output.write(drafted.shown(piece, accepted) if drafted else piece.text)
        self._figures = figures(self._pieces, self._rounds.modes)
        self._is_stopped = False

    async def _keep(self, error: BaseException | None) -> None:
        """End the turn: keep what was answered, forget a question that got nothing."""
        if error and (isinstance(error, EngineClosedError) or not isinstance(error, SSDError)):
            raise error
        text = "".join(piece.text for piece in self._pieces)
        if text or not error:
            await self._output.write("\n")
        if error:
            self._tell(str(error))
        if error or not text:
            self.turns.pop()
        else:
            self.turns.append(Message(ASSISTANT, text))

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
    prompt: Callable[[bool], None] = lambda goes_on: None,
    rounds: Rounds | None = None,
    tint: Tint | None = None,
) -> int:
    """Converse on two descriptors until the input ends; gives the exit status.

    `prompt` asks for a line, and is told whether one goes on. rounds, tint: as `Chat` takes them.
    """
    line = line or wait_line(tell)
    output = OutputStream(stdout)
    async with started(make, line) as engine:
        if params.max_tokens is None:
            params = replace(params, max_tokens=min(ANSWER_TOKENS, engine.max_context // 2))
        chat = Chat(engine, output, params, line=line, tell=tell, rounds=rounds, tint=tint)
        conversation = asyncio.create_task(_converse(chat, read_lines(stdin), prompt))

        def interrupt() -> None:
            if chat.interrupt():
                return
            if os.isatty(stdin):
                chat.drop()
                tell(f"\n{HELP}")
                prompt(False)
            else:
                conversation.cancel()

        with _interrupts(interrupt):
            await asyncio.wait({conversation})
    return _status(conversation)


async def _converse(chat: Chat, lines: AsyncIterator[bytes], prompt: Callable[[bool], None]) -> None:
    prompt(False)
    async for line in lines:
        if not await chat.handle(line):
            return
        prompt(chat.is_open)
    await chat.end()


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


def _ask(goes_on: bool) -> None:
    """The prompt goes to stderr: stdout carries answers only."""
    sys.stderr.write(". " if goes_on else "> ")
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
    rounds = Rounds()
    make = partial(configured_engine, loaded, line, trace, [rounds])
    is_terminal = os.isatty(stdin) and sys.stderr is not None
    work = run_chat(
        make,
        stdin=stdin,
        stdout=stdout,
        params=params,
        line=line,
        prompt=_ask if is_terminal else lambda goes_on: None,
        rounds=rounds,
        tint=terminal_tint(stdout),
    )
    raise typer.Exit(run(work))

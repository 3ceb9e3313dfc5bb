"""`ssd-run chat` with a scripted engine: history, commands, interrupts, a full context."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest

from ssd_runtime.cli.chat import HELP, Chat, run_chat
from ssd_runtime.cli.progress import PlainDisplay, WaitLine
from ssd_runtime.cli.streams import OutputStream
from ssd_runtime.errors import ComputeError, ContextLengthError, EngineClosedError
from ssd_runtime.testing.fake_engine import FakeEngine, Script, Step, echo
from ssd_runtime.types import Message, Request, SamplingParams


class Conversation:
    """A chat, its notes and its output."""

    def __init__(self, script: Script) -> None:
        self.notes: list[str] = []
        self.engine = FakeEngine(script)
        self.receive_fd, self.output = os.pipe()
        self.chat = Chat(
            self.engine,
            OutputStream(self.output),
            SamplingParams(),
            line=WaitLine(PlainDisplay(self.notes.append)),
            tell=self.notes.append,
        )

    @property
    def turns(self) -> list[tuple[str, str]]:
        return [(turn.role, turn.content) for turn in self.chat.turns]

    def shown(self) -> str:
        """The output so far."""
        return os.read(self.receive_fd, 65536).decode()


@asynccontextmanager
async def conversation(script: Script = echo) -> AsyncIterator[Conversation]:
    talk = Conversation(script)
    async with talk.engine:
        yield talk
    os.close(talk.receive_fd)
    os.close(talk.output)


async def test_each_question_is_asked_with_the_turns_before_it() -> None:
    """The history is the engine's input, in order."""
    async with conversation() as talk:
        assert await talk.chat.handle(b"hello you")
        assert await talk.chat.handle(b"and again\r")
        assert talk.shown() == "hello you\nand again\n"
        assert talk.engine.requests[1].messages == (
            Message("user", "hello you"),
            Message("assistant", "hello you"),
            Message("user", "and again"),
        )


async def test_commands_are_not_asked() -> None:
    """/reset forgets, /exit ends, /help helps, an empty line does nothing."""
    async with conversation() as talk:
        await talk.chat.handle(b"hi")
        assert await talk.chat.handle(b"/reset")
        assert await talk.chat.handle(b"/help")
        assert await talk.chat.handle(b"   ")
        assert await talk.chat.handle(b"\xff")
        assert not await talk.chat.handle(b"/exit")
        assert talk.turns == []
        assert len(talk.engine.requests) == 1
        assert talk.notes == [
            HELP,
            "not valid UTF-8: got byte 0xff at offset 0, expected UTF-8 text",
        ]


@pytest.mark.parametrize("command", [b"/foo", b"/exit now", b"/"])
async def test_an_unknown_command_is_named_before_the_help(command: bytes) -> None:
    """Whoever mistyped sees what was not understood."""
    async with conversation() as talk:
        assert await talk.chat.handle(command)
        assert talk.notes == [f"unknown command {command.decode()}\n{HELP}"]
        assert talk.engine.requests == []


@pytest.mark.parametrize("command", [b"/exit", b"/quit", b" /quit\r"])
async def test_both_usual_words_leave(command: bytes) -> None:
    """Without a word on stderr."""
    async with conversation() as talk:
        assert not await talk.chat.handle(command)
        assert talk.notes == []


async def test_an_interrupt_stops_the_answer_and_the_chat_goes_on() -> None:
    """The request is cancelled; what was shown stays in the history."""
    reached = asyncio.Event()

    def script(request: Request) -> Iterable[Step]:
        yield "part"
        reached.set()
        yield asyncio.Event()

    async with conversation(script) as talk:
        saying = asyncio.create_task(talk.chat.say("long"))
        await reached.wait()
        assert talk.chat.interrupt()
        await saying
        assert talk.engine.cancelled == ["chat-1"]
        assert talk.shown() == "part\n"
        assert talk.turns == [("user", "long"), ("assistant", "part")]
        assert not talk.chat.interrupt()


async def test_a_question_that_fails_is_forgotten() -> None:
    """The error is told, and the next question is asked as if it had not been."""
    async with conversation(lambda _: ["half", ComputeError("not finite")]) as talk:
        await talk.chat.handle(b"hi")
        assert talk.turns == []
        assert talk.notes == ["not finite"]
        assert talk.shown() == "half\n"


async def test_a_dead_engine_ends_the_chat() -> None:
    """No question can be answered any more."""
    async with conversation(lambda _: [EngineClosedError("died")]) as talk:
        with pytest.raises(EngineClosedError):
            await talk.chat.handle(b"hi")


async def test_a_full_context_forgets_the_oldest_turns() -> None:
    """Question and answer go together, with a note, until the rest fits."""

    def script(request: Request) -> Iterable[Step]:
        assert request.messages is not None
        fits = len(request.messages) <= 3
        return [request.messages[-1].content] if fits else [ContextLengthError("full", "prompt")]

    async with conversation(script) as talk:
        for text in ("one", "two", "three"):
            await talk.chat.say(text)
        assert talk.turns == [
            ("user", "two"),
            ("assistant", "two"),
            ("user", "three"),
            ("assistant", "three"),
        ]
        assert talk.notes == ["the context is full: the oldest turn is forgotten"]


async def test_a_question_that_can_never_fit_is_an_error() -> None:
    """Nothing is left to forget."""
    async with conversation(lambda _: [ContextLengthError("full", "prompt")]) as talk:
        await talk.chat.say("endless")
        assert (talk.turns, talk.notes) == ([], ["full"])


async def test_a_piped_conversation_ends_with_its_input() -> None:
    """Prompts are asked for, answers are lines, and half the context is kept for an answer."""
    engine = FakeEngine(context=100)
    receive, output = os.pipe()
    source, send = os.pipe()
    os.write(send, b"hi\nyou")
    os.close(send)
    asked: list[str] = []
    status = await run_chat(
        lambda: engine,
        stdin=source,
        stdout=output,
        params=SamplingParams(),
        prompt=lambda goes_on: asked.append(">"),
    )
    assert (status, os.read(receive, 100)) == (0, b"hi\nyou\n")
    assert asked == [">"] * 3
    assert engine.requests[0].params.max_tokens == 50
    for fd in (receive, output, source):
        os.close(fd)

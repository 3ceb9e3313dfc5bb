"""Questions of several lines, the figures of `/stats`, and the tint of drafted text."""

from __future__ import annotations

import asyncio
import os
import pty
from collections.abc import Iterable, Iterator
from contextlib import suppress

import pytest

from ssd_runtime.cli.chat import STOPPED, Chat
from ssd_runtime.cli.progress import PlainDisplay, WaitLine
from ssd_runtime.cli.questions import QuestionReader
from ssd_runtime.cli.rounds import NO_FIGURES, DraftedText, Rounds, figures, terminal_tint
from ssd_runtime.cli.streams import OutputStream
from ssd_runtime.errors import ComputeError
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.fake_engine import TIMING, FakeEngine, Script, Step, echo, prompt_text
from ssd_runtime.testing.toy import ToyTokenizer
from ssd_runtime.types import FinishReason, Output, Request, SamplingParams, SpeculationStats


def questions(*lines: str) -> list[str]:
    """The questions that lines make."""
    reader = QuestionReader()
    return [question for line in lines if (question := reader.push(line)) is not None]


class TestSeveralLines:
    @pytest.mark.parametrize(
        ("lines", "asked"),
        [
            (["one", "two"], ["one", "two"]),
            (["one \\", "two\\  ", "three", "four"], ["one \ntwo\nthree", "four"]),
            (['"""one', "  two", "", 'three"""', "four"], ["one\n  two\n\nthree", "four"]),
            (['"""', "/reset", '"""'], ["/reset"]),
            (['"""one"""', "two"], ["one", "two"]),
            (['"""', '"""', "one"], ["", "one"]),
            (['say """ here'], ['say """ here']),
            (['"""C:\\', 'D:"""'], ["C:\\\nD:"]),
            (["  spaced  "], ["spaced"]),
        ],
    )
    def test_lines_make_questions(self, lines: list[str], asked: list[str]) -> None:
        """A backslash goes on in the next line, three quotes hold everything up to the next three."""
        assert questions(*lines) == asked

    def test_a_question_that_is_open_can_be_ended(self) -> None:
        """What there is of it; the next line begins anew."""
        reader = QuestionReader()
        assert reader.push('"""half') is None
        assert reader.is_open
        assert reader.finish() == "half"
        assert reader.push("whole") == "whole"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe's two ends."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def new_chat(engine: FakeEngine, output: int, notes: list[str]) -> Chat:
    line = WaitLine(PlainDisplay(notes.append))
    return Chat(engine, OutputStream(output), SamplingParams(), line=line, tell=notes.append)


async def told(script: Script, pipe: tuple[int, int], *lines: bytes) -> tuple[list[str], list[str]]:
    """What was asked and what was noted in a chat whose input ends behind `lines`."""
    notes: list[str] = []
    async with FakeEngine(script) as engine:
        chat = new_chat(engine, pipe[1], notes)
        for line in lines:
            await chat.handle(line)
        await chat.end()
    return [request.messages[-1].content for request in engine.requests if request.messages], notes


async def test_a_question_of_several_lines_is_asked_as_one(pipe: tuple[int, int]) -> None:
    """Commands in it are text; what is still open when the input ends is asked too."""
    lines = (b"one\\", b"/reset", b'"""two', b"/exit", b'"""', b'"""three')
    assert await told(echo, pipe, *lines) == (["one\n/reset", "two\n/exit", "three"], [])


async def test_a_question_that_was_dropped_is_not_asked(pipe: tuple[int, int]) -> None:
    """Ctrl-C at the prompt."""
    async with FakeEngine() as engine:
        chat = new_chat(engine, pipe[1], [])
        await chat.handle(b'"""half')
        chat.drop()
        await chat.handle(b"whole")
    assert [request.messages[-1].content for request in engine.requests if request.messages] == ["whole"]


class TestStats:
    def test_the_figures_of_an_answer(self) -> None:
        """Tokens, rates and the rounds by mode, in the words of every other summary."""
        stats = SpeculationStats(rounds=4, hits=1, misses=1, draft_tokens=10, accepted_tokens=8)
        pieces = [Output("a", "", (1,) * 11), last_piece((1,), stats)]
        assert figures(pieces, {"ssd": 3, "autoregressive": 1}).splitlines() == [
            "prompt      3 tokens, 2 of them cached",
            "answer      12 tokens in 2.00 s, 6.0 tokens/s, first token after 0.500 s",
            "drafts      8 of 10 tokens accepted (0.80), mean acceptance length 3.00",
            "hits        1 of 2 outcomes were prepared (0.50)",
            "rounds      4: 3 ssd, 1 autoregressive",
        ]

    def test_what_is_not_defined_is_not_there(self) -> None:
        """Without drafts there is no acceptance, without lookups no hit rate."""
        pieces = [last_piece((1,), SpeculationStats(rounds=1))]
        assert [line.split()[0] for line in figures(pieces, {}).splitlines()] == [
            "prompt",
            "answer",
            "rounds",
        ]

    async def test_before_and_behind_an_answer(self, pipe: tuple[int, int]) -> None:
        """The command is no question; an answer that failed has no figures."""
        _, notes = await told(echo, pipe, b"/stats", b"hi you", b"/stats")
        assert notes[0] == NO_FIGURES
        assert "answer      2 tokens in 2.00 s" in notes[1]
        _, notes = await told(lambda _: ["half", ComputeError("broken")], pipe, b"hi", b"/stats")
        assert notes == ["broken", NO_FIGURES]

    @pytest.mark.parametrize("shown", ["", "part"])
    async def test_a_stopped_answer_leaves_the_figures_of_the_whole_one(
        self, shown: str, pipe: tuple[int, int]
    ) -> None:
        """With a remark, so that nobody takes them for those of the stopped one."""
        notes: list[str] = []
        reached = asyncio.Event()

        def script(request: Request) -> Iterable[Step]:
            if prompt_text(request) != "wait":
                yield from echo(request)
                return
            yield from [shown] * bool(shown)
            reached.set()
            yield asyncio.Event()

        async with FakeEngine(script) as engine:
            chat = new_chat(engine, pipe[1], notes)
            await chat.handle(b"hi you")
            saying = asyncio.create_task(chat.handle(b"wait"))
            await reached.wait()
            chat.interrupt()
            await saying
            await chat.handle(b"/stats")
            await chat.handle(b"three words now")
            await chat.handle(b"/stats")
        assert notes[0].startswith(f"{STOPPED}\nprompt")
        assert "answer      2 tokens" in notes[0]
        assert notes[1].startswith("prompt")
        assert "answer      3 tokens" in notes[1]


def last_piece(token_ids: tuple[int, ...], stats: SpeculationStats) -> Output:
    return Output("a", "", token_ids, FinishReason.STOP, (7, 8, 9), 0, TIMING, stats, cached_tokens=2)


def record(request_id: str, accepted: int, mode: str = "ssd") -> RoundRecord:
    return RoundRecord(request_id, "cache", True, accepted, accepted, accepted + 1, mode=mode)


class TestTint:
    def test_rounds_of_other_requests_are_not_counted(self) -> None:
        """A request that was stopped may still end its round behind the next question."""
        rounds = Rounds()
        rounds.follow("b")
        for each in (record("a", 5), record("b", 2), record("b", 0, "speculative"), record("b", 1)):
            rounds.observe(each)
        assert rounds.modes == {"ssd": 2, "speculative": 1}
        assert rounds.accepted(Output("b", "", ())) == 0
        assert [rounds.accepted(Output("b", "x", (1,))) for _ in range(4)] == [2, 0, 1, 0]

    def test_the_drafted_part_of_a_piece_is_tinted(self) -> None:
        """The bonus behind it is the target's own."""
        tokenizer = ToyTokenizer(96)
        ids = tuple(tokenizer.encode("abc"))
        drafted = DraftedText(tokenizer, lambda text: f"<{text}>")
        assert drafted.shown(Output("a", "abc", ids), 2) == "<ab>c"
        assert drafted.shown(Output("a", "abc", ids), 0) == "abc"
        assert drafted.shown(Output("a", "", ids), 3) == ""

    def test_colours_are_for_terminals(self, monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, int]) -> None:
        """Not for pipes, not for a dumb terminal, and not where NO_COLOR is set."""
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        master, slave = pty.openpty()
        with suppress(OSError), os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr("sys.stdout", terminal)
            tint = terminal_tint(slave)
            assert tint is not None
            assert tint("x") == "\x1b[36mx\x1b[0m"
            assert terminal_tint(pipe[1]) is None
            monkeypatch.setenv("TERM", "dumb")
            assert terminal_tint(slave) is None
            monkeypatch.setenv("TERM", "xterm-256color")
            monkeypatch.setenv("NO_COLOR", "1")
            assert terminal_tint(slave) is None
        os.close(master)

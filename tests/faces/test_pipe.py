"""`ssd-run pipe` with a scripted engine: order, batching, bad lines, streaming, ends."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ssd_runtime.cli.formats import Format, JsonLinesFormat, TextFormat
from ssd_runtime.cli.pipe import run_pipe
from ssd_runtime.errors import ComputeError, ContextLengthError, EngineClosedError, ModelError, SSDError
from ssd_runtime.settings.request import derive_seed
from ssd_runtime.settings.schema import EngineSettings, Settings
from ssd_runtime.testing.fake_engine import FakeEngine, Script, Step, echo, prompt_text
from ssd_runtime.types import Request, SamplingParams

DEFAULTS = SamplingParams(temperature=0.5)


class Session:
    """A running pipe: what is written into it, what comes out, and its notes."""

    def __init__(self, engine: FakeEngine, form: Callable[[Callable[[str], None]], Format]) -> None:
        self.engine = engine
        self.notes: list[str] = []
        self.form = form(self.notes.append)
        self.input, self.send_fd = os.pipe()
        self.receive_fd, self.output = os.pipe()
        self._received = b""

    def send(self, data: bytes) -> None:
        os.write(self.send_fd, data)

    def end(self) -> None:
        """Close the input."""
        os.close(self.send_fd)
        self.send_fd = -1

    def hang_up(self) -> None:
        """Close the output as `head -1` does."""
        os.close(self.receive_fd)
        self.receive_fd = -1

    async def receive(self, size: int) -> bytes:
        """The next `size` bytes of the output."""
        return await asyncio.to_thread(os.read, self.receive_fd, size)

    async def run(self, seed: int | None = None) -> int:
        try:
            return await run_pipe(
                lambda: self.engine,
                self.form,
                stdin=self.input,
                stdout=self.output,
                defaults=DEFAULTS,
                seed=seed,
                complain=self.notes.append,
            )
        finally:
            os.close(self.output)
            os.close(self.input)


@asynccontextmanager
async def session(script: Script = echo, jsonl: bool = False, rows: int = 8) -> AsyncIterator[Session]:
    """A session that is not running yet."""
    engine = FakeEngine(script, Settings(engine=EngineSettings(max_batch_size=rows)))
    running = Session(engine, lambda complain: JsonLinesFormat() if jsonl else TextFormat(complain))
    try:
        yield running
    finally:
        for fd in (running.send_fd, running.receive_fd):
            if fd >= 0:
                os.close(fd)


async def answers(data: bytes, **options: Any) -> tuple[int, str, list[str], FakeEngine]:
    """Status, output, notes and engine of a pipe that is given `data` and then the end."""
    seed = options.pop("seed", None)
    async with session(**options) as pipe:
        pipe.send(data)
        pipe.end()
        status = await pipe.run(seed)
        received = b""
        while chunk := await pipe.receive(65536):
            received += chunk
        return status, received.decode(), pipe.notes, pipe.engine


async def test_answers_are_lines_in_the_order_of_the_prompts() -> None:
    """However the requests finish."""
    later = asyncio.Event()

    def script(request: Request) -> Iterable[Step]:
        if prompt_text(request) == "slow":
            return [later, "slow"]
        later.set()
        return ["fast"]

    status, out, notes, engine = await answers(b"slow\nquick\n", script=script)
    assert (status, out) == (0, "slow\nfast\n")
    assert engine.finished == ["1", "0"]
    assert notes[0].startswith("2 requests, 0 failed; 2 tokens in ")


async def test_several_requests_run_at_once_but_not_all_of_them() -> None:
    """Four batches ahead, so that rounds are full and memory is bounded."""
    _, out, _, engine = await answers(b"hi\n" * 100, rows=2)
    assert out == "hi\n" * 100
    assert engine.most_running == 8


async def test_answers_of_several_lines_are_escaped() -> None:
    """One answer a line, reversibly."""
    _, out, _, _ = await answers(b"a\nb\n", script=lambda _: ["x\n", "\\y"])
    assert out == "x\\n\\\\y\n" * 2


async def test_a_single_prompt_is_answered_as_it_stands() -> None:
    """Its pieces come at once and unescaped; no final newline is needed."""
    async with session(lambda _: [gate, "a\n", gate_2, "b"]) as pipe:
        gate, gate_2 = asyncio.Event(), asyncio.Event()
        pipe.send(b"only")
        pipe.end()
        running = asyncio.create_task(pipe.run())
        gate.set()
        assert await pipe.receive(100) == b"a\n"
        gate_2.set()
        assert await running == 0
        assert await pipe.receive(100) == b"b\n"


async def test_a_long_lived_pipe_answers_while_its_input_is_open() -> None:
    """Each answer is written as soon as it is whole."""
    async with session() as pipe:
        running = asyncio.create_task(pipe.run())
        for prompt in (b"one\n", b"two\n"):
            pipe.send(prompt)
            assert await pipe.receive(100) == prompt
        pipe.end()
        assert await running == 0


async def test_empty_input_gives_nothing() -> None:
    """Status 0, no output, no summary."""
    assert (await answers(b""))[:3] == (0, "", [])


async def test_bad_text_lines_keep_the_lines_in_step() -> None:
    """Each bad line is an empty line of output and a note; the engine goes on."""
    data = b"good\n\n\xff\nnul\0\ncrlf\r\nlast"
    status, out, notes, engine = await answers(data)
    assert (status, out) == (1, "good\n\n\n\ncrlf\nlast\n")
    assert [note.split(",")[0] for note in notes[:3]] == [
        "line 2: prompt: got ''",
        "line 3: not valid UTF-8: got byte 0xff at offset 0",
        "line 4: prompt: got 'nul\\x00'",
    ]
    assert notes[3].startswith("6 requests, 3 failed")
    assert engine.cancelled == []


async def test_bad_json_lines_are_errors_in_their_place() -> None:
    """`id` is the line's where it can be read, the line's number where it has none, else null."""
    lines = [
        b"{",
        b"[]",
        b'{"id": 4, "prompt": "ok"}',
        b'{"id": 5, "prompt": "x", "temperature": -1}',
        b'{"prompt": "x", "tempratur": 1}',
        b'{"id": [], "prompt": "x"}',
        b'{"id": "n", "prompt": "x", "top_p": NaN}',
    ]
    status, out, notes, _ = await answers(b"\n".join(lines), jsonl=True)
    got = [json.loads(line) for line in out.splitlines()]
    assert status == 1
    assert [answer["id"] for answer in got] == [None, None, 4, 5, "4", None, None]
    assert [answer.get("error", {}).get("param") for answer in got] == [
        None,
        None,
        None,
        "temperature",
        "tempratur",
        "id",
        None,
    ]
    assert got[2]["text"] == "ok"
    for number, answer in enumerate(got, 1):
        assert number == 3 or answer["error"]["message"].startswith(f"line {number}: ")
    assert notes[0].startswith("7 requests, 6 failed (see error in the output lines); ")


async def test_errors_of_json_lines_name_the_line_of_the_input() -> None:
    """And the place in it; a line without anything in it is called empty, and counts."""
    _, out, _, _ = await answers(b'{"prompt":"a","max_tokens":2}\n\n{bad\n', jsonl=True)
    messages = [json.loads(line)["error"]["message"] for line in out.splitlines()[1:]]
    assert messages[0] == "line 2: empty; expected a JSON object"
    assert messages[1].startswith("line 3: not valid JSON: column 2: Expecting property name")
    assert "line 1" not in messages[1]


async def test_errors_of_the_engine_belong_to_their_request() -> None:
    """A request that fails leaves its neighbours alone, even when the fault is a bug."""

    def script(request: Request) -> Iterable[Step]:
        faults = {"long": ContextLengthError("too long", "prompt"), "bug": ZeroDivisionError("x")}
        return [faults.get(prompt_text(request)) or "fine"]

    data = b'{"prompt": "long"}\n{"prompt": "bug"}\n{"prompt": "good"}\n'
    status, out, _, _ = await answers(data, script=script, jsonl=True)
    long, bug, good = (json.loads(line) for line in out.splitlines())
    assert status == 1
    assert long["error"] == {
        "type": "context_length_exceeded",
        "message": "line 1: too long",
        "param": "prompt",
    }
    assert bug["error"] == {
        "type": "internal_error",
        "message": "line 2: internal error: ZeroDivisionError: x",
        "param": None,
    }
    assert good["text"] == "fine"


async def test_a_line_of_a_megabyte_reaches_the_engine(tmp_path: Path) -> None:
    """It is the engine that knows what fits the context; a file is read as a pipe is."""
    prompt = b"x" * 2**20
    (tmp_path / "in").write_bytes(prompt)
    async with session(lambda request: [str(len(prompt_text(request)))]) as pipe:
        os.close(pipe.input)
        pipe.input = os.open(tmp_path / "in", os.O_RDONLY)
        assert await pipe.run() == 0
        assert await pipe.receive(100) == b"1048576\n"


async def test_long_answers_do_not_need_a_reader_that_keeps_up() -> None:
    """More than a pipe holds is written in parts, while the loop stays free."""
    async with session(lambda _: ["y" * 200_000]) as pipe:
        pipe.send(b"a\nb\n")
        pipe.end()
        running = asyncio.create_task(pipe.run())
        received = 0
        while chunk := await pipe.receive(65536):
            received += len(chunk)
        assert await running == 0
        assert received == 400_002


async def test_every_line_gets_a_seed_of_its_own() -> None:
    """Derived from the command's seed and the line's place; other defaults are the command's."""
    _, _, _, engine = await answers(b"a\nb\n", seed=5)
    assert [request.params for request in engine.requests] == [
        SamplingParams(temperature=0.5, seed=derive_seed(5, index)) for index in (0, 1)
    ]


async def test_a_reader_that_goes_away_ends_the_pipe_at_once() -> None:
    """What runs is cancelled, though the input goes on and no answer is due; status 0, no note."""
    both_run = asyncio.Event()

    def script(request: Request) -> Iterable[Step]:
        yield "x"
        if request.id == "1":
            both_run.set()
        yield asyncio.Event()

    async with session(script) as pipe:
        pipe.send(b"a\nb\n")
        running = asyncio.create_task(pipe.run())
        await both_run.wait()
        pipe.hang_up()
        assert await running == 0
        assert sorted(pipe.engine.cancelled) == ["0", "1"]
        assert pipe.notes == []


async def test_a_dead_engine_ends_the_pipe() -> None:
    """There is no point in failing every line of an endless input."""
    async with session(lambda _: [EngineClosedError("the engine has died")]) as pipe:
        pipe.send(b"a\nb\n")
        with pytest.raises(EngineClosedError, match="has died"):
            await pipe.run()


async def test_a_full_disk_is_an_error_with_a_reason() -> None:
    """The answers cannot be written, and the user learns why."""
    async with session() as pipe:
        pipe.send(b"a\nb\n")
        pipe.end()
        os.close(pipe.output)
        pipe.output = os.open("/dev/full", os.O_WRONLY)
        with pytest.raises(SSDError, match="stdout: the answers cannot be written: No space left"):
            await pipe.run()


async def test_a_model_that_cannot_be_loaded_ends_the_pipe() -> None:
    """The error is the engine's own, and no line is read."""

    class Broken(FakeEngine):
        async def __aenter__(self) -> Broken:
            raise ModelError("no such model")

    async with session() as pipe:
        pipe.engine = Broken()
        with pytest.raises(ModelError, match="no such model"):
            await pipe.run()


async def test_an_answer_that_breaks_off_ends_its_line() -> None:
    """Half an answer was shown already; the error is beside it."""
    async with session(lambda _: ["half", gate, ComputeError("not finite")]) as pipe:
        gate = asyncio.Event()
        pipe.send(b"only\n")
        pipe.end()
        running = asyncio.create_task(pipe.run())
        assert await pipe.receive(100) == b"half"
        gate.set()
        assert await running == 1
        assert await pipe.receive(100) == b"\n"
        assert pipe.notes[0] == "line 1: not finite"

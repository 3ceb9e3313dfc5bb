"""Who takes part in a comparison: ours, transformers, llama.cpp. Each answers one prompt at a time."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ssd_runtime.bench.prompts import Prompt
from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.errors import SSDError

CONTEXT = 4096
PIPE = [sys.executable, "-c", "from ssd_runtime.cli.main import main; main()", "pipe", "--format", "jsonl"]


class MissingPeerError(SSDError):
    """A peer that cannot take part here, and why."""


@dataclass(frozen=True, slots=True)
class Work:
    """One prompt, by its ids, and the two numbers of new tokens between which the rate is a slope."""

    prompt: Prompt
    prompt_ids: tuple[int, ...]
    short: int
    long: int


class Peer(Protocol):
    """An engine that is loaded."""

    @property
    def name(self) -> str: ...
    def rate(self, work: Work) -> float: ...
    def close(self) -> None: ...


def slope(seconds: Callable[[int], float], short: int, long: int) -> float:
    """Tokens a second between the `short`-th and the `long`-th new token."""
    return (long - short) / (seconds(long) - seconds(short))


class Ours:
    """`ssd-run pipe` in one mode, as a user runs it; the time is from a line's writing to its answer."""

    def __init__(
        self, mode: str, arguments: Sequence[str] = (), pipe: Sequence[str] = PIPE, clock: Clock = monotonic
    ) -> None:
        self.name = f"ours, {mode}"
        self._clock = clock
        command = [*pipe, "--mode", mode, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt in the model's chat template; they are what every peer reads."""
        return tuple(self._answer(prompt, 1)["prompt_token_ids"])

    def rate(self, work: Work) -> float:
        """See `slope`."""
        return slope(lambda count: self._seconds(work.prompt, count), work.short, work.long)

    def close(self) -> None:
        """End the input, and with it the pipe."""
        for stream in (self._process.stdin, self._process.stdout):
            _stream(stream).close()
        self._process.wait()

    def _seconds(self, prompt: Prompt, count: int) -> float:
        started = self._clock()
        answer = self._answer(prompt, count)
        seconds = self._clock() - started
        if len(answer["token_ids"]) != count:
            raise SSDError(f"{self.name}: got {len(answer['token_ids'])} tokens, expected {count}")
        return seconds

    def _answer(self, prompt: Prompt, count: int) -> dict[str, Any]:
        request = {"prompt": prompt.text, "raw": prompt.raw, "max_tokens": count, "ignore_eos": True}
        _stream(self._process.stdin).write(json.dumps(request | {"temperature": 0}) + "\n")
        line = _stream(self._process.stdout).readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended; see stderr"}
        if "error" in answer:
            raise SSDError(f"{self.name}, prompt {prompt.id!r}: {answer['error']}")
        return answer


class Transformers:
    """transformers' own `generate`, greedy, on the float32 weights that we read."""

    name = "transformers"

    def __init__(self, model: str, threads: int, clock: Clock = monotonic) -> None:
        import torch

        from scripts.reference import Reference

        torch.set_num_threads(threads)
        self._reference = Reference(model)
        self._clock = clock

    def rate(self, work: Work) -> float:
        """See `slope`."""
        return slope(lambda count: self._seconds(work.prompt_ids, count), work.short, work.long)

    def close(self) -> None:
        """Nothing to end."""

    def _seconds(self, prompt_ids: Sequence[int], count: int) -> float:
        started = self._clock()
        self._reference.continued(prompt_ids, count)
        return self._clock() - started


class LlamaCppPython:
    """llama.cpp within this process, through `llama-cpp-python`. Raises `MissingPeerError` without it."""

    name = "llama.cpp"

    def __init__(self, gguf: Path, threads: int, clock: Clock = monotonic) -> None:
        try:
            llama_cpp = importlib.import_module("llama_cpp")
        except ImportError:
            raise MissingPeerError("no llama-cpp-python here, and no --llama-bench PATH") from None
        self._llama: Any = llama_cpp.Llama(
            str(gguf), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        self._clock = clock

    def rate(self, work: Work) -> float:
        """See `slope`."""
        return slope(lambda count: self._seconds(work.prompt_ids, count), work.short, work.long)

    def close(self) -> None:
        """Give the model back."""
        self._llama.close()

    def _seconds(self, prompt_ids: Sequence[int], count: int) -> float:
        self._llama.reset()  # else the prompt's beginning would be taken from the last answer
        started = self._clock()
        for made, _ in enumerate(self._llama.generate(list(prompt_ids), temp=0.0), 1):
            if made == count:
                break
        return self._clock() - started


class LlamaBench:
    """llama.cpp's `llama-bench`: as many tokens, after as many tokens of context, by its own clock."""

    name = "llama.cpp (llama-bench)"

    def __init__(self, tool: Path, gguf: Path, threads: int) -> None:
        """Raises `MissingPeerError` where the tool is not there."""
        if not tool.is_file():
            raise MissingPeerError(f"no such file: {tool}")
        self._command = [str(tool), "-m", str(gguf), "-t", str(threads), "-p", "0", "-r", "1", "-o", "json"]

    def rate(self, work: Work) -> float:
        """Tokens a second, as the tool says. Raises `SSDError` where it fails."""
        depth = len(work.prompt_ids) + work.short
        command = [*self._command, "-n", str(work.long - work.short), "-d", str(depth)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            return float(json.loads(done.stdout)[-1]["avg_ts"])
        except (ValueError, LookupError, TypeError) as error:
            raise SSDError(
                f"{' '.join(command)}: status {done.returncode}, {error!r}; it said: {done.stderr[-500:]}"
            ) from error

    def close(self) -> None:
        """Nothing to end: each run is a process of its own."""


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream

"""Who takes part in a comparison: ours, transformers, llama.cpp.

Ours and `llama-batched-bench` answer several prompts at once; the others one at a time.
"""

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
NO_PREFIX_CACHE = ["--set", "engine.enable_prefix_caching=false"]
"""So that both runs of a slope read the prompt: else the first alone would, and count it as decoding."""
PIPE = [sys.executable, "-c", "from ssd_runtime.cli.main import main; main()", "pipe", "--format", "jsonl"]


class MissingPeerError(SSDError):
    """A peer that cannot take part here, and why."""


@dataclass(frozen=True, slots=True)
class Work:
    """Prompts that are answered at once, and the two numbers of new tokens between which a rate is a slope.

    prompt_ids: each prompt as the model reads it.
    """

    prompts: tuple[Prompt, ...]
    prompt_ids: tuple[tuple[int, ...], ...]
    short: int
    long: int

    @property
    def depth(self) -> int:
        """Tokens that stand before those which are counted; the mean over the prompts."""
        return sum(map(len, self.prompt_ids)) // len(self.prompt_ids) + self.short

    def slope(self, seconds: Callable[[int], float]) -> float:
        """Tokens a second over all prompts; `seconds(count)` is the time for `count` new tokens each."""
        return len(self.prompts) * (self.long - self.short) / (seconds(self.long) - seconds(self.short))


class Peer(Protocol):
    """An engine that is loaded."""

    @property
    def name(self) -> str: ...
    def rate(self, work: Work) -> float: ...
    def close(self) -> None: ...


class Ours:
    """`ssd-run pipe` in one mode, as a user runs it; the time is from a line's writing to its answer."""

    def __init__(
        self, mode: str, arguments: Sequence[str] = (), pipe: Sequence[str] = PIPE, clock: Clock = monotonic
    ) -> None:
        self.name = f"ours, {mode}"
        self._clock = clock
        command = [*pipe, "--mode", mode, *NO_PREFIX_CACHE, *arguments]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def prompt_ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids of a prompt in the model's chat template; they are what every peer reads."""
        self._ask(prompt, 1)
        return tuple(self._answer(prompt)["prompt_token_ids"])

    def rate(self, work: Work) -> float:
        """See `Work.slope`."""
        return work.slope(lambda count: self._seconds(work.prompts, count))

    def close(self) -> None:
        """End the input, and with it the pipe."""
        for stream in (self._process.stdin, self._process.stdout):
            _stream(stream).close()
        self._process.wait()

    def _seconds(self, prompts: Sequence[Prompt], count: int) -> float:
        started = self._clock()
        for prompt in prompts:
            self._ask(prompt, count)
        lengths = {len(self._answer(prompt)["token_ids"]) for prompt in prompts}
        seconds = self._clock() - started
        if lengths != {count}:
            raise SSDError(f"{self.name}: got answers of {sorted(lengths)} tokens, expected {count}")
        return seconds

    def _ask(self, prompt: Prompt, count: int) -> None:
        request = {"prompt": prompt.text, "raw": prompt.raw, "max_tokens": count, "ignore_eos": True}
        _stream(self._process.stdin).write(json.dumps(request | {"temperature": 0}) + "\n")

    def _answer(self, prompt: Prompt) -> dict[str, Any]:
        """The next answer; they come in the order of the questions."""
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
        """See `Work.slope`; one prompt."""
        (prompt_ids,) = work.prompt_ids
        return work.slope(lambda count: self._seconds(prompt_ids, count))

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
        """See `Work.slope`; one prompt."""
        (prompt_ids,) = work.prompt_ids
        return work.slope(lambda count: self._seconds(prompt_ids, count))

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
    """llama.cpp's `llama-bench`: as many tokens, after as many tokens of context, by its own clock.

    It counts no sampling, so it is somewhat faster than anything that picks its tokens.
    """

    name = "llama.cpp (llama-bench)"

    def __init__(self, tool: Path, gguf: Path, threads: int) -> None:
        """Raises `MissingPeerError` where the tool is not there."""
        if not tool.is_file():
            raise MissingPeerError(f"no such file: {tool}")
        self._command = [str(tool), "-m", str(gguf), "-t", str(threads), "-p", "0", "-r", "1", "-o", "json"]

    def rate(self, work: Work) -> float:
        """Tokens a second, as the tool says. Raises `SSDError` where it fails."""
        command = [*self._command, "-n", str(work.long - work.short), "-d", str(work.depth)]
        return _reported(command, lambda text: json.loads(text)[-1]["avg_ts"])

    def close(self) -> None:
        """Nothing to end: each run is a process of its own."""


class LlamaBatchedBench:
    """llama.cpp's `llama-batched-bench`: as many rows at once, over all of them, by its own clock."""

    name = "llama.cpp (llama-batched-bench)"

    def __init__(self, tool: Path, gguf: Path, threads: int) -> None:
        """Raises `MissingPeerError` where the tool is not there."""
        if not tool.is_file():
            raise MissingPeerError(f"no such file: {tool}")
        self._command = [str(tool), "-m", str(gguf), "-t", str(threads), "--output-format", "jsonl"]

    def rate(self, work: Work) -> float:
        """Tokens a second, as the tool says. Raises `SSDError` where it fails."""
        rows, tokens = len(work.prompts), work.long - work.short
        sizes = {"-npl": rows, "-npp": work.depth, "-ntg": tokens, "-c": rows * (work.depth + tokens)}
        command = [*self._command, *(str(part) for pair in sizes.items() for part in pair)]
        return _reported(command, _batched_rate)

    def close(self) -> None:
        """Nothing to end: each run is a process of its own."""


def _batched_rate(text: str) -> float:
    """From the last line that is an object: the tool may write others around it."""
    objects = [line for line in text.splitlines() if line.startswith("{")]
    return float(json.loads(objects[-1])["speed_tg"])


def _reported(command: Sequence[str], read: Callable[[str], Any]) -> float:
    """The rate that a tool reports on stdout. Raises `SSDError` with what it said where there is none."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return float(read(done.stdout))
    except (ValueError, LookupError, TypeError) as error:
        raise SSDError(
            f"{' '.join(command)}: status {done.returncode}, {error!r}; it said: {done.stderr[-500:]}"
        ) from error


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream

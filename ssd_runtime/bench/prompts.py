"""Prompt sets: what comes along, and files of the same form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ssd_runtime.errors import ConfigError

SHIPPED = Path(__file__).with_name("shipped.jsonl")
_SOURCE = re.compile(r"(?P<path>.+?)(?::(?P<count>[1-9]\d*))?")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message, or with `raw` a text to continue; `id` is unique within its set."""

    id: str
    text: str
    raw: bool = False


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts that are measured together."""

    name: str
    prompts: tuple[Prompt, ...]


def read_sets(sources: Iterable[str]) -> list[PromptSet]:
    """A set for each `FILE.jsonl` or, for its first N lines only, `FILE.jsonl:N`.

    A line has `prompt`, or `turns` of which the first counts, and may have `id` and `raw`. A set is
    called like its file, or like the whole source where two files share a name. Raises `ConfigError`.
    """
    read = [(source, _set(source)) for source in sources]
    names = [found.name for _, found in read]
    return [found if names.count(found.name) == 1 else replace(found, name=source) for source, found in read]


def _set(source: str) -> PromptSet:
    match = _SOURCE.fullmatch(source)
    if match is None:
        raise ConfigError(f"--prompts {source!r}: expected FILE.jsonl or FILE.jsonl:N")
    path = Path(match["path"])
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--prompts {path}: cannot be read: {error}") from error
    found = tuple(_unique(_prompts(path, lines[: int(match["count"] or len(lines))])))
    if not found:
        raise ConfigError(f"--prompts {path}: there is no prompt in it")
    return PromptSet(path.stem, found)


def _prompts(path: Path, lines: Iterable[str]) -> Iterator[Prompt]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _prompt(f"{path}:{number}", line, str(number))


def _prompt(where: str, line: str, number: str) -> Prompt:
    try:
        raw = json.loads(line)
        text = raw["prompt"] if "prompt" in raw else raw["turns"][0]
        if not (isinstance(text, str) and text):
            raise ValueError("the prompt is not a text")
        return Prompt(str(raw.get("id", number)), text, bool(raw.get("raw", False)))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: expected an object with 'prompt' or 'turns', got: {error!r}") from error


def _unique(prompts: Iterable[Prompt]) -> Iterator[Prompt]:
    seen: set[str] = set()
    for index, prompt in enumerate(prompts):
        name = prompt.id if prompt.id not in seen else f"{prompt.id}#{index}"
        seen.add(name)
        yield replace(prompt, id=name)

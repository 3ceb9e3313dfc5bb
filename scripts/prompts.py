"""The prompts that the scripts run on: the project's own small set, or any file of the same form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SHIPPED = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"
_SOURCE = re.compile(r"(?P<path>.+?)(?::(?P<count>\d+))?")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message; `id` is unique within what `load_prompts` returns."""

    id: str
    text: str


def load_prompts(sources: Iterable[str]) -> list[Prompt]:
    """The prompts of every source `FILE.jsonl` or, for the first N only, `FILE.jsonl:N`.

    A line has `prompt`, or `turns` of which the first counts. Raises OSError for a file that cannot be
    read, ValueError with file and line for a line that is neither.
    """
    return [Prompt(f"{index}/{prompt.id}", prompt.text) for index, prompt in enumerate(_all(sources))]


def _all(sources: Iterable[str]) -> Iterator[Prompt]:
    for source in sources:
        match = _SOURCE.fullmatch(source)
        if match is None:
            raise ValueError(f"got {source!r}, expected FILE.jsonl or FILE.jsonl:N")
        lines = Path(match["path"]).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines[: int(match["count"] or len(lines))], start=1):
            yield _prompt(line, f"{match['path']}:{number}")


def _prompt(line: str, where: str) -> Prompt:
    try:
        raw = json.loads(line)
        return Prompt(str(raw.get("id", where)), str(raw["prompt"] if "prompt" in raw else raw["turns"][0]))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"{where}: expected an object with 'prompt' or 'turns': {error!r}") from error

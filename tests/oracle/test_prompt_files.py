"""Prompt files: the shipped set, slices of any file, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.prompts import SHIPPED, load_prompts
from ssd_runtime.errors import ConfigError


def test_shipped_set_is_small_and_partly_chinese() -> None:
    """Twelve prompts of our own, three of them in Chinese."""
    prompts = load_prompts([str(SHIPPED)])
    assert len(prompts) == len({prompt.id for prompt in prompts}) == 12
    assert sum(any("\u4e00" <= char <= "\u9fff" for char in prompt.text) for prompt in prompts) == 3


def test_first_turn_counts_and_a_number_cuts_the_file(tmp_path: Path) -> None:
    """Both forms of a line; `FILE:N` takes N lines; ids stay unique over several sources."""
    file = tmp_path / "p.jsonl"
    lines = [{"id": 1, "turns": ["a", "b"]}, {"id": 2, "prompt": "c"}, {"id": 3, "prompt": "d"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    prompts = load_prompts([f"{file}:2", f"{file}:1"])
    assert [prompt.text for prompt in prompts] == ["a", "c", "a"]
    assert [prompt.id for prompt in prompts] == ["0/1", "1/2", "2/1"]


@pytest.mark.parametrize("line", ["{", '{"id": 1}', '{"turns": []}', "[1]"])
def test_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    """File and line number stand in the message."""
    file = tmp_path / "p.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"p\.jsonl:1: expected"):
        load_prompts([str(file)])

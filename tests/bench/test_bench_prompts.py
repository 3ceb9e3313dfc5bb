"""Prompt sets: the shipped one, files, slices of them, and clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ssd_runtime.bench.prompts import SHIPPED, Prompt, read_sets
from ssd_runtime.errors import ConfigError


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_few_prompts_come_along_one_of_them_in_chinese() -> None:
    """So that `ssd-run bench` needs no file."""
    (shipped,) = read_sets([str(SHIPPED)])
    assert len(shipped.prompts) == 4
    assert any("\u4e00" <= char <= "\u9fff" for prompt in shipped.prompts for char in prompt.text)


def test_both_forms_of_a_line_and_the_first_turn(tmp_path: Path) -> None:
    """Conversations give their first question; `raw` continues a text without a chat template."""
    path = write(tmp_path / "mine.jsonl", {"id": 1, "turns": ["a", "b"]}, {"prompt": "c", "raw": True})
    (found,) = read_sets([str(path)])
    assert found.name == "mine"
    assert found.prompts == (Prompt("1", "a"), Prompt("2", "c", raw=True))


def test_a_number_cuts_the_file_and_ids_stay_unique(tmp_path: Path) -> None:
    """Two sets of one file are called by their whole sources."""
    path = write(tmp_path / "p.jsonl", {"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}, {"prompt": "c"})
    one, two = read_sets([f"{path}:1", f"{path}:2"])
    assert (one.name, two.name) == (f"{path}:1", f"{path}:2")
    assert [prompt.text for prompt in one.prompts] == ["a"]
    assert [prompt.id for prompt in two.prompts] == ["1", "1#1"]


@pytest.mark.parametrize(
    "line", ["{", '{"id": 1}', '{"turns": []}', "[1]", '{"prompt": 3}', '{"prompt": ""}']
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    """File and line number stand in the message."""
    path = tmp_path / "p.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"p\.jsonl:2: expected an object with 'prompt' or 'turns', got"):
        read_sets([str(path)])


def test_a_file_that_is_missing_or_empty_is_named(tmp_path: Path) -> None:
    """Both before anything is loaded."""
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot be read"):
        read_sets([str(tmp_path / "nowhere.jsonl")])
    with pytest.raises(ConfigError, match="there is no prompt in it"):
        read_sets([str(write(tmp_path / "empty.jsonl"))])

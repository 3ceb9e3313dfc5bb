"""The prompts that the scripts run on: the project's own small set, or any file of the same form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from ssd_runtime.bench.prompts import Prompt, read_sets

__all__ = ["SHIPPED", "Prompt", "load_prompts"]

SHIPPED = Path(__file__).parents[1] / "tests" / "data" / "prompts.jsonl"


def load_prompts(sources: Iterable[str]) -> list[Prompt]:
    """The prompts of all sources as one list, their ids made unique; see `read_sets`."""
    prompts = [prompt for found in read_sets(sources) for prompt in found.prompts]
    return [replace(prompt, id=f"{index}/{prompt.id}") for index, prompt in enumerate(prompts)]

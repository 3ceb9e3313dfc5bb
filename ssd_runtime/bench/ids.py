"""Every mode must give the very same tokens; where one does not, its figures are worth nothing."""

from __future__ import annotations

import hashlib
import json
from itertools import zip_longest

from ssd_runtime.bench.answering import Pass, Streamed
from ssd_runtime.bench.plan import Turn
from ssd_runtime.errors import SSDError

NOT_COMPARED = "not compared"


class IdsDifferError(SSDError):
    """Two runs of one prompt with one seed gave different tokens."""


class IdsCheck:
    """Compares each answer with the first one to the same prompt at the same temperature.

    So the modes, the repetitions and the batch sizes are all compared with each other.
    """

    def __init__(self, *, sampled_too: bool = True) -> None:
        """sampled_too: also above temperature 0, where not every sampler gives one text for a seed."""
        self._sampled_too = sampled_too
        self._first: dict[tuple[str, float, str], tuple[str, tuple[int, ...]]] = {}

    def check(self, turn: Turn, mode: str, result: Pass) -> None:
        """Raise `IdsDifferError` for the first prompt, and position in it, that differs."""
        cell = turn.cell
        if cell.temperature > 0 and not self._sampled_too:
            return
        who = f"{mode} (batch {cell.batch}, repetition {turn.repetition + 1})"
        for answer in result.answers:
            key = (cell.prompts.name, cell.temperature, answer.request_id)
            other, token_ids = self._first.setdefault(key, (who, answer.token_ids))
            if answer.token_ids != token_ids:
                where = f"prompt {answer.request_id!r} of {cell.prompts.name} at T {cell.temperature:g}"
                raise IdsDifferError(f"{where}: {_difference(other, token_ids, who, answer)}")

    def digest(self, set_name: str, temperature: float) -> str:
        """A hash over all token ids of one prompt set at one temperature, or that they were not compared."""
        if temperature > 0 and not self._sampled_too:
            return NOT_COMPARED
        found = {
            prompt: token_ids
            for (name, t, prompt), (_, token_ids) in self._first.items()
            if (name, t) == (set_name, temperature)
        }
        text = json.dumps(sorted(found.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _difference(other: str, expected: tuple[int, ...], who: str, answer: Streamed) -> str:
    pairs = enumerate(zip_longest(expected, answer.token_ids))
    position, (first, second) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
    return f"token {position} is {_named(first)} in {other} and {_named(second)} in {who}"


def _named(token: int | None) -> str:
    return "missing" if token is None else str(token)

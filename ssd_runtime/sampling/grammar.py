"""The rule of structured output: only tokens with which the text can still become what was asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ssd_runtime.sampling.processors import Stateless, ban


class Matcher(Protocol):
    """A grammar and how far a text has come in it; `llguidance.LLMatcher`."""

    def validate_tokens(self, tokens: list[int]) -> int: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def compute_bitmask(self) -> bytes: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...


class GrammarMask(Stateless):
    """Bans what the grammar does not allow next. Knows nothing of the prompt: it begins with the answer.

    A guess may leave the grammar. There it has no logits: it is rejected where it left, and nobody needs
    to know what would come behind it. Behind an end token nothing is banned.
    """

    def __init__(self, matcher: Matcher, end_ids: frozenset[int]) -> None:
        """`end_ids`: tokens that end the text; the grammar allows them where it may end."""
        self._matcher = matcher
        self._end_ids = end_ids
        self._astray = 0
        self._ended = 0

    def push(self, token: int) -> None:
        """See `Processor`."""
        if self._ended or (token in self._end_ids and not self._astray):
            self._ended += 1
        elif self._astray or not self._matcher.validate_tokens([token]):
            self._astray += 1
        else:
            self._matcher.consume_token(token)

    def pop(self, token: int) -> None:
        """See `Processor`."""
        if self._ended:
            self._ended -= 1
        elif self._astray:
            self._astray -= 1
        elif not self._matcher.rollback(1):
            raise RuntimeError(f"the grammar cannot go back: {self._matcher.get_error()}")

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        if self._astray:
            return torch.full_like(logits, torch.nan)
        if self._ended:
            return logits
        bits = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())
        banned = np.ones(logits.numel(), dtype=bool)
        known = min(len(bits), len(banned))
        banned[:known] = bits[:known] == 0
        return ban(logits, banned)

"""The mask of a grammar along a text that comes and goes, with a grammar that the test can read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.sampling.grammar import GrammarMask

END = 0
VOCAB = 40


class Counting:
    """The grammar "1, 2, 3, …, `last`, end", which never fails by itself."""

    def __init__(self, last: int = 3, broken: bool = False) -> None:
        self.said = 0
        self._last = last
        self._broken = broken

    def validate_tokens(self, tokens: list[int]) -> int:
        return int(tokens[0] == self.said + 1 <= self._last)

    def consume_token(self, sampled_token: int) -> bool:
        assert self.validate_tokens([sampled_token])
        self.said += 1
        return True

    def rollback(self, num_tokens: int) -> bool:
        self.said -= num_tokens
        return self.said >= 0 and not self._broken

    def compute_bitmask(self) -> bytes:
        bits = np.zeros(32, dtype=np.uint8)  # fewer than the vocabulary has
        bits[END if self.said == self._last else self.said + 1] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def is_error(self) -> bool:
        return self._broken

    def get_error(self) -> str:
        return "too complex"


def allowed(mask: GrammarMask) -> list[int]:
    """What is left; nothing where there are no logits."""
    logits = mask.apply(torch.zeros(VOCAB))
    return torch.nonzero(logits == 0).flatten().tolist()


def expected(text: Sequence[int]) -> list[int]:
    """By definition: the next number, the end, everything behind the end, nothing astray."""
    for place, token in enumerate(text):
        if place == 3 and token == END:
            return list(range(VOCAB))
        if token == END:
            return list(range(VOCAB))  # an end where none may be is rejected before anybody asks
        if place >= 3 or token != place + 1:
            return []
    return [len(text) + 1 if len(text) < 3 else END]


tokens = st.sampled_from((1, 2, 3, END, 7))


@given(st.lists(st.one_of(st.none(), tokens), max_size=25))
def test_any_walk_is_judged_by_where_it_stands(walk: Sequence[int | None]) -> None:
    """None is a step back; astray and past the end and back again."""
    mask, text = GrammarMask(Counting(), frozenset({END})), list[int]()
    for step in walk:
        if step is not None:
            text.append(step)
            mask.push(step)
        elif text:
            mask.pop(text.pop())
        assert allowed(mask) == expected(text)


def test_what_the_grammar_cannot_do_is_an_error() -> None:
    """Not a mask that bans, or allows, everything."""
    mask = GrammarMask(Counting(broken=True), frozenset({END}))
    with pytest.raises(RuntimeError, match="too complex"):
        mask.apply(torch.zeros(VOCAB))
    mask.push(1)
    with pytest.raises(RuntimeError, match="cannot go back: too complex"):
        mask.pop(1)

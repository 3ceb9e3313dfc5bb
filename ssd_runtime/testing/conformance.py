"""Conformance suites: whether a part keeps the contract of its kind. For tests of plugins.

def test_conforms() -> None:
    check_proposer(MyProposer(), vocab_size=1000)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_runtime.speculation.guard import Fault, check_answer

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Proposer, Warper

LENGTHS = (1, 2, 7, 100, 4000)
KS = (1, 2, 5, 16)


def check_proposer(proposer: Proposer, vocab_size: int, *, time_limit: float = 1.0) -> None:
    """Raise AssertionError, with the question asked, where `proposer` breaks its contract.

    Asked are texts without and with repetitions, empty to 4000 tokens, as list and as tuple. Each
    answer must be a sequence of at most k ints in [0, vocab_size), must come within `time_limit`
    seconds, and must leave the text as it was. Nothing is said about how good the guesses are.
    """
    for text in _texts(vocab_size):
        for k in KS:
            _check(proposer, text, k, vocab_size, time_limit)


def check_warper(make: Callable[[], Warper], vocab_size: int, *, time_limit: float = 0.1) -> None:
    """Raise AssertionError, with the question asked, where what `make` makes breaks a warper's contract.

    Each answer must be a float32 tensor `[vocab_size]` with a number in it, must come within `time_limit`
    seconds, and must depend on its question alone: two warpers, asked in opposite orders, agree.
    """
    questions = [(text, num) for text in _texts(vocab_size) if text for num in {1, len(text)}]
    first, second = make(), make()
    expected = [_warped(first, text, num, vocab_size, time_limit) for text, num in questions]
    for (text, num), one in reversed(list(zip(questions, expected, strict=True))):
        again = _warped(second, text, num, vocab_size, time_limit)
        assert torch.equal(one, again), f"{_asked(text, num)}: another answer when asked again"


def _warped(warper: Warper, text: list[int], num_prompt: int, vocab_size: int, time_limit: float) -> Tensor:
    logits = torch.randn(vocab_size, generator=torch.Generator().manual_seed(len(text)))
    question, started = _asked(text, num_prompt), time.perf_counter()
    warped = warper.warp(logits, tuple(text), num_prompt)
    took = time.perf_counter() - started
    assert isinstance(warped, Tensor), f"{question}: got {type(warped).__name__}, expected a tensor"
    got = f"{warped.dtype} {tuple(warped.shape)}"
    assert got == f"torch.float32 ({vocab_size},)", f"{question}: got {got}, expected float32 ({vocab_size},)"
    assert torch.isfinite(warped.max()), f"{question}: nothing is left, or numbers are not finite"
    assert took <= time_limit, f"{question}: took {took:.3f} s, expected at most {time_limit:g} s"
    return warped.clone()


def _asked(text: list[int], num_prompt: int) -> str:
    return f"warp(…, <{len(text)} tokens: {text[:8]} …>, {num_prompt})"


def _check(proposer: Proposer, text: list[int], k: int, vocab_size: int, time_limit: float) -> None:
    question = f"propose(<{len(text)} tokens: {text[:8]} …>, {k})"
    given = list(text)
    started = time.perf_counter()
    answer = proposer.propose(given, k)
    took = time.perf_counter() - started
    checked = check_answer(answer, k, vocab_size)
    assert not isinstance(checked, Fault), f"{question}: {checked.kind}: {checked.detail}"
    assert given == text, f"{question}: changed the text it was given"
    assert answer is not given, f"{question}: answered with the very list it was given"
    assert took <= time_limit, f"{question}: took {took:.3f} s, expected at most {time_limit:g} s"
    as_tuple = check_answer(proposer.propose(tuple(text), k), k, vocab_size)
    assert not isinstance(as_tuple, Fault), f"{question}, as a tuple: {as_tuple.kind}: {as_tuple.detail}"


def _texts(vocab_size: int) -> Iterator[list[int]]:
    random = Random(0)  # the same questions on every run
    yield []
    for length in LENGTHS:
        yield [random.randrange(vocab_size) for _ in range(length)]
        yield [vocab_size - 1] * length
        yield [random.randrange(min(vocab_size, 4)) for _ in range(length)]
        yield [0, vocab_size - 1] * (length // 2)

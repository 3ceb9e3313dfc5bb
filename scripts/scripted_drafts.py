"""Drafts for the equality sweep, as a plugin: they know what plain decoding emitted, or never do.

`wrong` always proposes a token that the target does not emit next, `wavering` the true continuation
cut at a random length and spoilt now and then, `oracle` the true continuation, so that every lookup hits.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from ssd_runtime.api import Proposer, Registry, hookimpl

TEXTS: list[tuple[int, ...]] = []
"""Prompt and answer of every request of the sweep, as plain decoding gave them."""

SPOILT = 0.1


def learn(texts: Iterable[tuple[int, ...]]) -> None:
    """Tell the drafts what plain decoding emitted."""
    TEXTS[:] = texts


def continuation(token_ids: Sequence[int], k: int) -> tuple[int, ...]:
    """The next `k` tokens of the text that starts with `token_ids`; none if there is none."""
    known = tuple(token_ids)
    for text in TEXTS:
        if text[: len(known)] == known:
            return text[len(known) : len(known) + k]
    return ()


class Oracle:
    """Always right."""

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """The true continuation."""
        return continuation(token_ids, k)


class Wrong:
    """Never right."""

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """Each true token's neighbour, or the first ids where the text is not known."""
        true = continuation(token_ids, k)
        return [token - 1 if token else token + 1 for token in true] or list(range(k))


class Wavering:
    """Right for a random stretch."""

    def __init__(self) -> None:
        self._random = random.Random(0)

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """A random part of the true continuation, each token spoilt with probability `SPOILT`."""
        true = continuation(token_ids, self._random.randint(0, k))
        return [token ^ 1 if self._random.random() < SPOILT else token for token in true]


@hookimpl
def ssd_register_proposers(registry: Registry[Proposer]) -> None:
    """Register the three."""
    registry.register("oracle", Oracle)
    registry.register("wrong", Wrong)
    registry.register("wavering", Wavering)

"""Rules along a text that is partly guessed: a lane's memory of the requests it serves.

What is settled never changes, and is pushed once. What is guessed behind it is pushed as far as
needed and popped again, so that a position costs the few tokens by which it differs from the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ssd_kernels.arrays import copied
from ssd_runtime.messages import Rules
from ssd_runtime.sampling.processors import BAN, processors
from ssd_runtime.sampling.warp import is_usable


class RuleError(Exception):
    """A rule of a request raised; only a plugin's can."""


class Follower:
    """One request's processors, standing somewhere behind the settled text."""

    def __init__(self, rules: Rules, vocab_size: int) -> None:
        self._processors = processors(rules, vocab_size)
        self._num_prompt = rules.num_prompt
        self._vocab_size = vocab_size
        self._text: list[int] = []
        self._settled = 0

    def follow(self, settled: Sequence[int], length: int, guessed: Sequence[int]) -> None:
        """Stand behind the first `length` tokens of `settled`, at least the prompt, and then `guessed`.

        `settled` is the same text at each call, longer or shorter.
        """
        if not self._settled:
            self._start(settled[: self._num_prompt])
        if length != self._settled:
            self._settled = min(length, self._settled)
            self._shorten(self._settled)
            self._extend(settled[self._settled : length])
            self._settled = length
        ahead = self._text[self._settled :]
        known = next((i for i, pair in enumerate(zip(ahead, guessed)) if pair[0] != pair[1]), None)  # noqa: B905
        known = min(len(ahead), len(guessed)) if known is None else known
        self._shorten(self._settled + known)
        self._extend(guessed[known:])

    def apply(self, logits: Tensor) -> Tensor:
        """The processed logits of the next token: float32 `[W]` → `[W]`, W <= V; a copy.

        A row without usable numbers comes back as it is.
        """
        if not is_usable(logits):
            return logits
        width = logits.numel()
        row = copied(logits)
        if width < self._vocab_size:
            row = torch.cat((row, torch.full((self._vocab_size - width,), BAN, device=row.device)))
        for processor in self._processors:
            row = processor.apply(row)
        return row[:width]

    def _start(self, prompt: Sequence[int]) -> None:
        self._text.extend(prompt)
        self._settled = len(prompt)
        for processor in self._processors:
            processor.start(self._text)

    def _extend(self, token_ids: Sequence[int]) -> None:
        for token in token_ids:
            self._text.append(token)
            for processor in self._processors:
                processor.push(token)

    def _shorten(self, length: int) -> None:
        while len(self._text) > length:
            token = self._text.pop()
            for processor in self._processors:
                processor.pop(token)


class Followers:
    """The followers of one lane, one for each request; those of requests that ended are forgotten."""

    def __init__(self, vocab_size: int) -> None:
        """vocab_size: the target's; a draft with fewer tokens has narrower logits."""
        self._vocab_size = vocab_size
        self._followers: WeakKeyDictionary[Rules, Follower] = WeakKeyDictionary()

    def process(
        self, rules: Rules, logits: Tensor, settled: Sequence[int], length: int, guessed: Sequence[int]
    ) -> Tensor:
        """`logits` `[W]` of the token behind `settled[:length]` and `guessed`, as `rules` leave them.

        Raises `RuleError` where a rule raises.
        """
        follower = self._followers.get(rules)
        if follower is None:
            follower = self._followers[rules] = Follower(rules, self._vocab_size)
        try:
            follower.follow(settled, length, guessed)
            return follower.apply(logits)
        except Exception as error:
            del self._followers[rules]  # half of its processors may have moved
            raise RuleError(f"{type(error).__name__}: {error}") from error

    def guess(self, rules: Rules, logits: Tensor, settled: Sequence[int], guessed: Sequence[int]) -> Tensor:
        """As `process`, for a draft: NaN where a rule raises, so that nothing is drafted from there."""
        try:
            return self.process(rules, logits, settled, len(settled), guessed)
        except RuleError:
            return torch.full_like(logits, torch.nan)

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._followers)

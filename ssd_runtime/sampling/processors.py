"""What a request's rules do to the logits of one position, given everything before it.

A `Processor` follows one text: tokens are pushed as they come and popped where a guess was wrong, so
that every position along a draft is judged by exactly what stands before it. The order of processors
is transformers' (`GenerationMixin._get_logits_processor`); presence and frequency penalties, which it
does not have, follow the repetition penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from ssd_kernels.arrays import native
from ssd_runtime.messages import Rules

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Warper

BAN = -torch.inf


class Processor(Protocol):
    """One rule of one request on one lane. `text`: the prompt and what was pushed, in order."""

    def start(self, text: Sequence[int]) -> None:
        """The prompt was read; `text` grows and shrinks with every push and pop from now on."""
        ...

    def push(self, token: int) -> None:
        """`token` was appended to the text."""
        ...

    def pop(self, token: int) -> None:
        """`token` was taken from the end of the text."""
        ...

    def apply(self, logits: Tensor) -> Tensor:
        """The logits `[V]` float32 of the token after the text; may be changed in place."""
        ...


class Stateless:
    """A processor that needs no more than the text, or not even that."""

    text: Sequence[int] = ()

    def start(self, text: Sequence[int]) -> None:
        """See `Processor`."""
        self.text = text

    def push(self, token: int) -> None:
        """See `Processor`."""

    def pop(self, token: int) -> None:
        """See `Processor`."""


class Bias(Stateless):
    """Adds to the logits of some tokens."""

    def __init__(self, bias: Sequence[tuple[int, float]]) -> None:
        self._ids = torch.tensor([token for token, _ in bias])
        self._values = torch.tensor([value for _, value in bias], dtype=torch.float32)

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        logits[self._ids.to(logits.device)] += self._values.to(logits.device)
        return logits


class Counts:
    """How often each token stands in the text, or in the answer alone."""

    def __init__(self, vocab_size: int, *, with_prompt: bool) -> None:
        self._counts = np.zeros(vocab_size, dtype=np.int32)
        self._with_prompt = with_prompt

    def start(self, text: Sequence[int]) -> None:
        """See `Processor`."""
        if self._with_prompt:
            self._counts += np.bincount(text, minlength=len(self._counts)).astype(np.int32)

    def push(self, token: int) -> None:
        """See `Processor`."""
        self._counts[token] += 1

    def pop(self, token: int) -> None:
        """See `Processor`."""
        self._counts[token] -= 1

    def seen(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The tokens there, ascending int64 `[C]`, and how often, float32 `[C]`."""
        ids = np.flatnonzero(self._counts)
        times = self._counts[ids].astype(np.float32)
        return torch.from_numpy(ids).to(device), torch.from_numpy(times).to(device)


class RepetitionPenalty(Counts):
    """Divides positive and multiplies negative logits of every token of prompt and answer."""

    def __init__(self, vocab_size: int, penalty: float) -> None:
        super().__init__(vocab_size, with_prompt=True)
        self._penalty = penalty

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        ids, _ = self.seen(logits.device)
        scores = logits[ids]
        # by a tensor, since a device may turn division by a number into a product with its inverse
        penalty = torch.tensor(self._penalty, dtype=torch.float32, device=logits.device)
        logits[ids] = torch.where(scores < 0, scores * penalty, scores / penalty)
        return logits


class AnswerPenalty(Counts):
    """OpenAI's: takes `presence` once and `frequency` each time from what the answer has said."""

    def __init__(self, vocab_size: int, presence: float, frequency: float) -> None:
        super().__init__(vocab_size, with_prompt=False)
        self._presence, self._frequency = presence, frequency

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        ids, times = self.seen(logits.device)
        logits[ids] -= times * self._frequency + self._presence
        return logits


class BadWords(Stateless):
    """Bans the last token of each word, a sequence of ids, where the text ends with the others."""

    def __init__(self, words: Sequence[tuple[int, ...]]) -> None:
        self._words = tuple(words)

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        banned = [word[-1] for word in self._words if self._ends_with(word[:-1])]
        if banned:
            logits[torch.tensor(banned, device=logits.device)] = BAN
        return logits

    def _ends_with(self, start: tuple[int, ...]) -> bool:
        size = len(start)
        return size <= len(self.text) and (not size or tuple(self.text[-size:]) == start)


class MinTokens(Stateless):
    """Bans what ends an answer until it is long enough."""

    def __init__(self, length: int, end_ids: Sequence[int]) -> None:
        """`length`: of prompt and answer together."""
        self._length = length
        self._end_ids = torch.tensor(end_ids)

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        if len(self.text) < self._length:
            logits[self._end_ids.to(logits.device)] = BAN
        return logits


class Allowed(Stateless):
    """Bans everything but some tokens."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int) -> None:
        self._banned = np.ones(vocab_size, dtype=bool)
        self._banned[list(token_ids)] = False

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        return ban(logits, self._banned)


class Banned(Stateless):
    """Bans some tokens."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._ids = torch.tensor(token_ids)

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        logits[self._ids.to(logits.device)] = BAN
        return logits


class Plugged(Stateless):
    """A plugin's warper; what it returns is checked."""

    def __init__(self, warper: Warper, num_prompt: int) -> None:
        self._warper = warper
        self._num_prompt = num_prompt

    def apply(self, logits: Tensor) -> Tensor:
        """See `Processor`."""
        shape, dtype = logits.shape, logits.dtype
        warped = self._warper.warp(logits, tuple(self.text), self._num_prompt)
        if not isinstance(warped, Tensor) or (warped.shape, warped.dtype) != (shape, dtype):
            raise TypeError(f"got {str(warped)[:60]}, expected a tensor of shape {tuple(shape)}, {dtype}")
        return warped


def ban(logits: Tensor, banned: np.ndarray) -> Tensor:
    """`logits` `[V]`, changed in place where the mask `banned` `[V]` is true."""
    native(logits)[native(torch.from_numpy(banned).to(logits.device))] = BAN
    return logits


def processors(rules: Rules, vocab_size: int) -> list[Processor]:
    """The processors that `rules` ask for, in transformers' order; none of them keeps `rules`."""
    made: list[Processor] = []
    if rules.logit_bias:
        made.append(Bias(rules.logit_bias))
    if rules.repetition_penalty != 1.0:
        made.append(RepetitionPenalty(vocab_size, rules.repetition_penalty))
    if rules.presence_penalty or rules.frequency_penalty:
        made.append(AnswerPenalty(vocab_size, rules.presence_penalty, rules.frequency_penalty))
    if rules.bad_words:
        made.append(BadWords(rules.bad_words))
    if rules.min_tokens and rules.end_ids:
        made.append(MinTokens(rules.num_prompt + rules.min_tokens, sorted(rules.end_ids)))
    if rules.allowed_token_ids is not None:
        made.append(Allowed(rules.allowed_token_ids, vocab_size))
    if rules.grammar is not None:
        made.append(rules.grammar())
    if rules.banned_token_ids:
        made.append(Banned(rules.banned_token_ids))
    made.extend(warper() for warper in rules.warpers)
    return made

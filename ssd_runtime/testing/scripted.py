"""Parts that do what a test tells them: lanes, and drafts with known tokens.

For the tests of this project and for those of plugins; needs no files and no network.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_runtime.device.lane import Worker
from ssd_runtime.memory.blocks import OutOfBlocks
from ssd_runtime.messages import StopWord
from ssd_runtime.speculation.model_draft import DraftState, Feed

VOCAB = 64
CERTAIN = 1000.0
"""A logit that no temperature and no noise can beat."""

Rule = Callable[[Sequence[int]], Tensor]
"""The logits `[V]` that a scripted draft gives after these tokens."""


@dataclass(slots=True)
class Pending:
    """A command that a scripted lane was given, and the future that waits for its result."""

    command: Any
    future: asyncio.Future[Any]


class ScriptedLane:
    """A lane without a thread: a command is done when the test says so.

    journal: every submission and completion in order, as (lane, what, kind of command); lanes that
    share one journal show what came first across them. `worker` is only needed for `execute`.
    automatic: whether a command is executed as soon as it is submitted.
    is_alive: whether the thread that is not there lives; set it as the test needs it.
    """

    def __init__(
        self,
        name: str = "lane",
        *,
        worker: Worker | None = None,
        automatic: bool = False,
        journal: list[tuple[str, str, str]] | None = None,
    ) -> None:
        """See the class."""
        self.name = name
        self.is_alive = True
        self.is_closed = False
        self.commands: list[Any] = []
        self.journal: list[tuple[str, str, str]] = [] if journal is None else journal
        self._worker = worker
        self.automatic = automatic
        self._pending: deque[Pending] = deque()

    @property
    def pending(self) -> list[Any]:
        """The commands that are not done, oldest first."""
        return [pending.command for pending in self._pending]

    def submit(self, command: Any) -> asyncio.Future[Any]:
        """Take a command; the future belongs to the running loop."""
        assert not self.is_closed, "nobody submits to a lane that was closed"
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.commands.append(command)
        self.journal.append((self.name, "submitted", command.kind))
        self._pending.append(Pending(command, future))
        if self.automatic:
            self.execute()
        return future

    def close(self) -> None:
        """Nobody submits any more; with a command pending it hangs, else it ends."""
        self.is_closed = True
        self.is_alive = self.is_alive and bool(self._pending)

    def join(self, timeout: float | None = None) -> bool:
        """Whether the thread has ended."""
        return not self.is_alive

    def complete(self, result: Any) -> None:
        """The oldest command has this result, unless nobody waits for it any more."""
        future = self._next().future
        if not future.done():
            future.set_result(result)

    def fail(self, error: Exception) -> None:
        """The oldest command raised `error`; nobody hears of it who waits no more."""
        future = self._next().future
        if not future.done():
            future.set_exception(error)

    def execute(self) -> Any:
        """Have the worker carry out the oldest command now, on this thread; returns its result."""
        assert self._worker is not None, "a lane that executes needs a worker"
        command = self._pending[0].command
        try:
            result = self._worker.execute(command)
        except Exception as error:
            self.fail(error)
            return None
        self.complete(result)
        return result

    def _next(self) -> Pending:
        pending = self._pending.popleft()
        self.journal.append((self.name, "done", pending.command.kind))
        return pending


class CountedStop(StopWord):
    """A stop word that is set after it was looked at `looks` times: a verdict at that moment."""

    __slots__ = ("_looks",)

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def is_set(self) -> bool:
        """Whether the time has come."""
        self._looks -= 1
        return self._looks < 0 or super().is_set()


def surely(token: int, vocab_size: int = VOCAB) -> Tensor:
    """Logits `[V]` of which `token` is drawn at every temperature."""
    logits = torch.zeros(vocab_size)
    logits[token] = CERTAIN
    return logits


def unusable(vocab_size: int = VOCAB) -> Tensor:
    """Logits `[V]` without a number in them: a draft's line ends here."""
    return torch.full((vocab_size,), torch.nan)


def continuing(texts: Sequence[Sequence[int]], vocab_size: int = VOCAB) -> Rule:
    """Knows the texts by heart: what follows in the one that begins like this; else token 1."""

    def rule(token_ids: Sequence[int]) -> Tensor:
        read = tuple(token_ids)
        known = (text for text in texts if len(text) > len(read) and tuple(text[: len(read)]) == read)
        text = next(known, None)
        return surely(text[len(read)] if text is not None else 1, vocab_size)

    return rule


def avoiding(rule: Rule) -> Rule:
    """Never the token that `rule` is sure of, but the next one."""

    def avoid(token_ids: Sequence[int]) -> Tensor:
        return rule(token_ids).roll(1)

    return avoid


def faltering(rule: Rule, chance: float = 0.4, seed: int = 0) -> Rule:
    """As `rule`, but after about `chance` of all texts it has nothing to say: random lengths."""

    def falter(token_ids: Sequence[int]) -> Tensor:
        logits = rule(token_ids)
        return torch.full_like(logits, torch.nan) if share(token_ids, seed) < chance else logits

    return falter


def mixing(one: Rule, other: Rule, chance: float = 0.5, seed: int = 1) -> Rule:
    """`one` after about `chance` of all texts, `other` after the rest."""

    def mix(token_ids: Sequence[int]) -> Tensor:
        return one(token_ids) if share(token_ids, seed) < chance else other(token_ids)

    return mix


def share(token_ids: Sequence[int], seed: int) -> float:
    """A number in [0, 1) that depends on the text and `seed` alone."""
    digest = hashlib.blake2b(repr((seed, *token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest) / 2**32


@dataclass(slots=True, eq=False)
class ReadState(DraftState):
    """A draft state that remembers the tokens themselves."""

    token_ids: list[int] = field(default_factory=list)


class ScriptedDraft:
    """A draft model whose logits are a rule of what it has read.

    passes: the feeds of every pass so far. states: those that were made and not dropped.
    before_pass: called with the number of each pass, from 0, before it begins; may raise or wait.
    capacity: tokens over all states beyond which memory is short.
    """

    weight_bytes = 0

    def __init__(
        self,
        rule: Rule,
        *,
        vocab_size: int = VOCAB,
        max_context: int = 512,
        before_pass: Callable[[int], None] = lambda number: None,
        capacity: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.max_context = max_context
        self.passes: list[list[Feed]] = []
        self.states: set[ReadState] = set()
        self._rule = rule
        self._before_pass = before_pass
        self._capacity = capacity

    @property
    def num_tokens(self) -> int:
        """Tokens that all states together have read."""
        return sum(state.length for state in self.states)

    def new(self) -> ReadState:
        """See `DraftModel`."""
        state = ReadState()
        self.states.add(state)
        return state

    def prefill(self, feeds: Sequence[Feed]) -> None:
        """See `DraftModel`."""
        self.extend(feeds)

    def extend(self, feeds: Sequence[Feed]) -> Tensor:
        """See `DraftModel`."""
        self._before_pass(len(self.passes))
        self._require(sum(len(feed.token_ids) for feed in feeds))
        self.passes.append(list(feeds))
        logits = [row for feed in feeds for row in self._read(feed)]
        return torch.stack(logits) if logits else torch.empty(0, self.vocab_size)

    def fork(self, state: DraftState, at: int) -> ReadState:
        """See `DraftModel`."""
        assert isinstance(state, ReadState)
        assert at <= state.length == len(state.token_ids), "a fork lies within what was read"
        self._require(at)
        forked = ReadState(at, token_ids=state.token_ids[:at])
        self.states.add(forked)
        return forked

    def commit(self, trunk: DraftState, branch: DraftState) -> None:
        """See `DraftModel`."""
        assert isinstance(trunk, ReadState)
        assert isinstance(branch, ReadState)
        trunk.token_ids, trunk.length = branch.token_ids, branch.length
        branch.token_ids, branch.length = [], 0
        self.states.discard(branch)

    def drop(self, state: DraftState) -> None:
        """See `DraftModel`."""
        assert isinstance(state, ReadState)
        state.token_ids, state.length = [], 0
        self.states.discard(state)

    def _require(self, num_tokens: int) -> None:
        if self._capacity is not None and self.num_tokens + num_tokens > self._capacity:
            raise OutOfBlocks(f"{num_tokens} more tokens wanted, {self._capacity} in all")

    def _read(self, feed: Feed) -> list[Tensor]:
        state = feed.state
        assert isinstance(state, ReadState)
        assert state.length == len(state.token_ids)
        self.states.add(state)  # a dropped state that reads again is in use again
        before = state.length
        state.token_ids.extend(feed.token_ids)
        state.length += len(feed.token_ids)
        first = before + len(feed.token_ids) - feed.num_logits
        return [self._rule(state.token_ids[: first + i + 1]) for i in range(feed.num_logits)]

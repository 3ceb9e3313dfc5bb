"""What the draft's lane does with a model: drafts, and anytime builds. Runs on the lane's thread.

A build extends every path by one token a pass and looks at the stop word in between, so that it
ends at most one pass after the verdict and whatever depth was reached is of use. Where the native
library can make all the passes it gets them in one call; the loop here is what that call does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from torch import Tensor

from ssd_kernels.arrays import copied, native
from ssd_runtime.clock import Clock
from ssd_runtime.hooks.kinds import Sampler
from ssd_runtime.memory.blocks import OutOfBlocks
from ssd_runtime.messages import Interrupted, StopWord
from ssd_runtime.models.native import Ask, draws_natively
from ssd_runtime.sampling.draw import DraftStep
from ssd_runtime.sampling.following import Followers
from ssd_runtime.speculation.commands import (
    BuildCommand,
    BuildResult,
    DraftCommand,
    DraftRow,
    ForgetCommand,
    StepCost,
)
from ssd_runtime.speculation.lines import Line, Pick, guess_of
from ssd_runtime.speculation.model_draft import DecoderDraft, DraftModel, Feed, InterruptibleDraft
from ssd_runtime.speculation.native_build import NativeBuilder
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.speculation.rows import Allot, Part, RowBuild, RowDraft
from ssd_runtime.speculation.trunk import Trunk

P = TypeVar("P", bound=Part)


class DraftWorker:
    """Owns a draft model and one trunk per sequence."""

    def __init__(
        self,
        draft: DraftModel,
        sampler: Sampler,
        allot: Allot,
        *,
        vocab_size: int,
        num_candidates: int,
        clock: Clock,
    ) -> None:
        """vocab_size: the target's. num_candidates: how many likely tokens to rank at each position."""
        self._draft = draft
        self._sampler = sampler
        self._allot = allot
        self._vocab_size = vocab_size
        self._num_candidates = min(num_candidates, vocab_size, draft.vocab_size)
        self._clock = clock
        self._trunks: dict[int, Trunk] = {}
        self._followers = Followers(vocab_size)
        self._interruptible = draft if isinstance(draft, InterruptibleDraft) else None
        self._draws = draws_natively(draft, sampler)
        self._builder: NativeBuilder | None = None
        if self._draws and isinstance(draft, DecoderDraft):
            self._builder = NativeBuilder(draft, self._num_candidates)

    def execute(self, command: DraftCommand | BuildCommand | ForgetCommand) -> Any:
        """Carry out one command; the results are described with the commands."""
        match command:
            case DraftCommand():
                return self._propose(command)
            case BuildCommand():
                return self._build(command)
            case ForgetCommand():
                return self._forget(command.uids)

    def check(self) -> None:
        """Assert that the trunks hold every block of the draft's memory that is neither free nor cached."""
        if isinstance(self._draft, DecoderDraft):
            self._draft.blocks.check([table for trunk in self._trunks.values() for table in trunk.tables])

    def _propose(self, command: DraftCommand) -> list[Proposal]:
        drafts: list[RowDraft] = []
        self._run(drafts, (RowDraft(row, self._trunk(row.uid)) for row in command.rows), command)
        return [draft.result() for draft in drafts] + [NOTHING] * (len(command.rows) - len(drafts))

    def _build(self, command: BuildCommand) -> BuildResult:
        builds: list[RowBuild] = []
        parts = (RowBuild(row, self._trunk(row.uid), self._allot) for row in command.rows)
        steps = self._run(builds, parts, command)
        results = [build.result() for build in builds] + [None] * (len(command.rows) - len(builds))
        return BuildResult(tuple(results), steps)

    def _run(
        self, begun: list[P], parts: Iterable[P], command: DraftCommand | BuildCommand
    ) -> tuple[StepCost, ...]:
        """Begin the parts and let them grow; what each pass cost. `begun`: where memory was found."""
        steps: list[StepCost] = []
        try:
            begun.extend(parts)
            self._grow(begun, command.stop, steps)
        except OutOfBlocks:
            self._give_way(command.rows)
        return tuple(steps)

    def _grow(self, parts: Sequence[Part], stop: StopWord, steps: list[StepCost]) -> None:
        """Let all lines grow until they are done or `stop` says so; each pass is added to `steps`."""
        while not stop.is_set() and (lines := [line for part in parts for line in part.lines()]):
            if self._builder is not None and self._builder.takes(parts):
                steps += self._builder.grow(parts, stop)
                return
            try:
                steps.append(self._step(lines, stop))
            except Interrupted:
                return
            for part in parts:
                part.advance()

    def _give_way(self, rows: Sequence[DraftRow]) -> None:
        """Memory is short: branches are given back first; what they proposed already stays of use."""
        for row in rows:
            self._trunk(row.uid).drop_branches()

    def _forget(self, uids: Sequence[int]) -> None:
        for uid in uids:
            if trunk := self._trunks.pop(uid, None):
                trunk.drop()
        if not self._trunks:
            self.check()

    def _trunk(self, uid: int) -> Trunk:
        if uid not in self._trunks:
            self._trunks[uid] = Trunk(self._draft)
        return self._trunks[uid]

    def _step(self, lines: Sequence[Line], stop: StopWord) -> StepCost:
        """Extend every line by one pass. Raises `Interrupted`."""
        started = self._clock()
        feeds = [line.feed() for line in lines]
        asks = [
            Ask(line.draw, feed.state.length + len(feed.token_ids) - i, count=self._num_candidates)
            for line, feed in zip(lines, feeds, strict=True)
            for i in reversed(range(feed.num_logits))
        ]
        picks = map(_pick, self._drafted(lines, feeds, asks, stop))
        for line, feed in zip(lines, feeds, strict=True):
            line.take([next(picks) for _ in range(feed.num_logits)])
        return StepCost(sum(len(feed.token_ids) for feed in feeds), self._clock() - started)

    def _drafted(
        self, lines: Sequence[Line], feeds: Sequence[Feed], asks: Sequence[Ask], stop: StopWord
    ) -> Sequence[DraftStep]:
        if self._draws and all(line.draw.is_plain for line in lines):
            drawn: Sequence[DraftStep] = self._draft.draw(feeds, asks, stop)  # type: ignore[attr-defined]
            return drawn
        logits = self._ruled(self._extended(feeds, stop)[:, : self._vocab_size], lines, feeds)
        draws, positions = [ask.draw for ask in asks], [ask.position for ask in asks]
        return self._sampler.draft(logits, draws, positions, self._num_candidates)

    def _extended(self, feeds: Sequence[Feed], stop: StopWord) -> Tensor:
        if self._interruptible is None:
            return self._draft.extend(feeds)
        return self._interruptible.extend_until(feeds, stop)

    def _ruled(self, logits: Tensor, lines: Sequence[Line], feeds: Sequence[Feed]) -> Tensor:
        """The logits as each request's own rules leave them."""
        if all(line.draw.rules is None for line in lines):
            return logits
        ruled, index = copied(logits), 0
        for line, feed in zip(lines, feeds, strict=True):
            if line.draw.rules is not None:
                for i, guessed in enumerate(line.guessed(feed.num_logits), index):
                    row = self._followers.guess(line.draw.rules, logits[i], line.settled, guessed)
                    native(ruled)[i] = native(row)
            index += feed.num_logits
        return ruled


def _pick(step: DraftStep) -> Pick:
    return Pick(step.token, guess_of(step.candidates, step.scores), step.odds)

"""What the draft's lane does with a model: drafts, and anytime builds. Runs on the lane's thread.

A build extends every path by one token a pass and looks at the stop word in between, so that it
ends at most one pass after the verdict and whatever depth was reached is of use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ssd_kernels.arrays import copied, native
from ssd_runtime.clock import Clock
from ssd_runtime.hooks.kinds import Sampler
from ssd_runtime.memory.blocks import OutOfBlocks
from ssd_runtime.messages import StopWord
from ssd_runtime.models.native import Ask, draws_natively
from ssd_runtime.sampling.draw import DraftStep
from ssd_runtime.sampling.following import Followers
from ssd_runtime.sampling.warp import BANNED
from ssd_runtime.speculation.commands import (
    BuildCommand,
    BuildResult,
    DraftCommand,
    DraftRow,
    ForgetCommand,
    StepCost,
)
from ssd_runtime.speculation.lines import Allot, CatchUp, Drafting, Line, Pick, RowBuild, line_draw
from ssd_runtime.speculation.model_draft import DraftModel, Feed
from ssd_runtime.speculation.proposal import NOTHING, Guess, Proposal
from ssd_runtime.speculation.trunk import Trunk


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
        self._draws = draws_natively(draft, sampler)

    def execute(self, command: DraftCommand | BuildCommand | ForgetCommand) -> Any:
        """Carry out one command; the results are described with the commands."""
        match command:
            case DraftCommand():
                return self._propose(command)
            case BuildCommand():
                return self._build(command)
            case ForgetCommand():
                return self._forget(command.uids)

    def _propose(self, command: DraftCommand) -> list[Proposal]:
        reading = [self._catch_up(row) for row in command.rows]
        self._run(reading, command.stop)
        drafting = [
            self._start(row, line) if line.is_done else None
            for row, line in zip(command.rows, reading, strict=True)
        ]
        self._run([line for line in drafting if line is not None], command.stop)
        return [NOTHING if line is None else line.proposal() for line in drafting]

    def _build(self, command: BuildCommand) -> BuildResult:
        steps: list[StepCost] = []
        builds: list[RowBuild] = []
        try:
            builds.extend(RowBuild(row, self._trunk(row.uid), self._allot) for row in command.rows)
            while not command.stop.is_set() and (lines := [line for b in builds for line in b.lines()]):
                steps.append(self._step(lines))
                for build in builds:
                    build.advance()
        except OutOfBlocks:
            self._give_way(command.rows)
        results = [build.result() for build in builds] + [None] * (len(command.rows) - len(builds))
        return BuildResult(tuple(results), tuple(steps))

    def _give_way(self, rows: Sequence[DraftRow]) -> None:
        """Memory is short: branches are given back first; what they proposed already stays of use."""
        for row in rows:
            self._trunk(row.uid).drop_branches()

    def _forget(self, uids: Sequence[int]) -> None:
        for uid in uids:
            if trunk := self._trunks.pop(uid, None):
                trunk.drop()

    def _trunk(self, uid: int) -> Trunk:
        if uid not in self._trunks:
            self._trunks[uid] = Trunk(self._draft)
        return self._trunks[uid]

    def _catch_up(self, row: DraftRow) -> CatchUp:
        trunk = self._trunk(row.uid)
        missing = trunk.align(list(row.token_ids))
        return CatchUp(trunk.path, missing, line_draw(row, len(row.token_ids)), row.token_ids)

    def _start(self, row: DraftRow, read: CatchUp) -> Drafting:
        first = read.guesses[len(row.token_ids)]
        length = min(row.length, row.max_len - len(row.token_ids) - 1)
        line = Drafting(read.path, read.draw, first.token, length, row.end_ids, row.token_ids)
        if length > 0:
            line.add(first)
        return line

    def _run(self, lines: Sequence[Line], stop: StopWord) -> None:
        while not stop.is_set() and (open_lines := [line for line in lines if not line.is_done]):
            self._step(open_lines)

    def _step(self, lines: Sequence[Line]) -> StepCost:
        """Extend every line by one pass."""
        started = self._clock()
        feeds = [line.feed() for line in lines]
        asks = [
            Ask(line.draw, feed.state.length + len(feed.token_ids) - i, count=self._num_candidates)
            for line, feed in zip(lines, feeds, strict=True)
            for i in reversed(range(feed.num_logits))
        ]
        picks = map(_pick, self._drafted(lines, feeds, asks))
        for line, feed in zip(lines, feeds, strict=True):
            line.take([next(picks) for _ in range(feed.num_logits)])
        return StepCost(sum(len(feed.token_ids) for feed in feeds), self._clock() - started)

    def _drafted(
        self, lines: Sequence[Line], feeds: Sequence[Feed], asks: Sequence[Ask]
    ) -> Sequence[DraftStep]:
        if self._draws and all(line.draw.is_plain for line in lines):
            drawn: Sequence[DraftStep] = self._draft.draw(feeds, asks)  # type: ignore[attr-defined]
            return drawn
        logits = self._ruled(self._draft.extend(feeds)[:, : self._vocab_size], lines, feeds)
        draws, positions = [ask.draw for ask in asks], [ask.position for ask in asks]
        return self._sampler.draft(logits, draws, positions, self._num_candidates)

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
    margin = step.scores[0] - step.scores[1] if len(step.scores) > 1 else 0.0
    likely = step.candidates
    if step.scores and step.scores[-1] < BANNED / 2:
        likely = tuple(token for token, score in zip(likely, step.scores, strict=True) if score > BANNED / 2)
    return Pick(step.token, Guess(likely, margin), step.odds)

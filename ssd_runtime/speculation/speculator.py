"""The loop's side of speculation: hands out proposals, starts builds, files what they prepared.

Every row has a mode of its own (its request's, or the engine's of the moment):

    autoregressive   no proposal
    speculative      the draft proposes while everybody waits; nothing is looked up
    ssd              the outcome cache is asked; a miss costs its own row a walk along `fallback`
    low_latency      proposers without a model are asked; the draft's lane rests
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ssd_runtime.clock import Clock
from ssd_runtime.messages import StopWord, Verdict
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.cache import Outcome, OutcomeCache
from ssd_runtime.speculation.commands import Branch, BuildCommand, BuildResult, DraftRow, ForgetCommand
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import PredictionSource, Source
from ssd_runtime.speculation.memory import NEVER, Memories
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.speculation.proposal import NOTHING, Proposal
from ssd_runtime.speculation.rounds import Build, Row, Served
from ssd_runtime.stats import CACHE_SOURCE
from ssd_runtime.types import RowMode


class Speculator:
    """One per engine; runs on the engine's loop."""

    def __init__(
        self,
        *,
        draft: DraftLane | None,
        drafting: Source | None,
        fallback: Sequence[Source],
        lookups: Sequence[Source],
        memories: Memories,
        modes: Modes,
        budget: BudgetChooser,
        length: int,
        max_context: int,
        clock: Clock,
        reads_ahead: bool = False,
    ) -> None:
        """`drafting` serves mode `speculative`, `lookups` the low-latency mode. max_context: of the draft.

        reads_ahead: in mode `speculative` too the draft reads a prompt while the target does.
        """
        self._draft = draft
        self._sources: dict[RowMode, tuple[Source, ...]] = {
            RowMode.SPECULATIVE: () if drafting is None else (drafting,),
            RowMode.SSD: tuple(fallback),
            RowMode.LOW_LATENCY: tuple(lookups),
        }
        self._needs_draft = {
            mode: all(source.needs_draft for source in sources) for mode, sources in self._sources.items()
        }
        self.modes = modes
        self._budget = budget
        self._length = length
        self._max_context = max_context
        self._clock = clock
        self._reads_ahead = reads_ahead
        self._outcomes: OutcomeCache[Proposal] = OutcomeCache()
        self._memories = memories
        self._round = 0
        self._round_started = 0.0
        self.num_branches = 0
        """Outcomes for which a proposal was prepared."""

    @property
    def rounds_by_mode(self) -> Mapping[str, int]:
        """Rounds of rows so far."""
        return self.modes.rounds

    def note_load(self, num_requests: int) -> None:
        """A round begins; so many requests run or wait."""
        self.modes.note_load(num_requests)

    def plan(self, sequence: TokenSequence) -> tuple[RowMode, int]:
        """A row's mode in the round that begins, and how many tokens its proposal may have at most."""
        mode = self.modes.of(sequence)
        if mode is RowMode.AUTOREGRESSIVE or (mode is RowMode.LOW_LATENCY and not self.modes.looks_up):
            return mode, 0
        left = sequence.num_left
        if self._needs_draft[mode]:
            left = min(left, self._max_context - len(sequence.token_ids))
        return mode, max(0, min(self._length_of(sequence), left - 1))

    def will_draft(self, rows: Sequence[Row]) -> bool:
        """Whether `take` will wait for the draft."""
        return RowMode.SPECULATIVE in [row.mode for row in rows if row.max_drafts > 0]

    async def take(self, rows: Sequence[Row]) -> list[Proposal]:
        """A proposal for each row: from the outcome cache, else from the row's sources in order."""
        self._round += 1
        self._round_started = self._clock()
        wanting = [i for i, row in enumerate(rows) if row.max_drafts > 0]
        if not wanting:
            return [NOTHING] * len(rows)
        proposals = [self._look_up(row) for row in rows]
        if predicted := [i for i in wanting if rows[i].sequence.prediction is not None]:
            await self._fill(rows, proposals, predicted, (PredictionSource(),))
        asking: dict[RowMode, list[int]] = {}
        for i in wanting:
            asking.setdefault(rows[i].mode, []).append(i)
        for mode, missing in asking.items():
            await self._fill(rows, proposals, missing, self._sources[mode])
        return proposals

    def will_branch(self, rows: Sequence[Row]) -> bool:
        """Whether `branch` will have something to do for these rows."""
        if self._draft is None or not any(map(self._may_branch, rows)):
            return False
        return self._draft.is_serving

    def branch(self, rows: Sequence[Row], proposals: Sequence[Proposal]) -> Build:
        """Start preparing the outcomes of this round; empty when the draft has nothing to do."""
        verified = tuple(zip(rows, proposals, strict=True))
        if self._draft is None or not (served := [pair for pair in verified if self._may_branch(pair[0])]):
            return Build(verified, self._clock())
        budget = self._budget.choose(len(served))
        draft_rows = tuple(
            self._branching_row(row.sequence, sent, budget if row.samples and row.mode is RowMode.SSD else 0)
            for row, sent in served
        )
        command = BuildCommand(draft_rows, StopWord())
        return Build(
            verified,
            self._clock(),
            tuple(Served(row.sequence, len(row.sequence.token_ids), sent) for row, sent in served),
            command,
            self._draft.submit(command),
        )

    async def stage(self, build: Build, results: Sequence[Any]) -> None:
        """Learn from the verdicts, and file what the build prepared.

        The wait is for the draft pass in hand, no longer.
        """
        tokens = self._learn(build, results)
        if build.future is not None:
            await self._collect(build)
        is_decoding = True
        for row, _ in build.verified:
            is_decoding = is_decoding and row.samples and row.num_feed == 1
            if row.samples:
                self.modes.rounds[row.mode] += 1
        if tokens and is_decoding:
            self.modes.note_round(tokens, self._clock() - self._round_started)

    async def _collect(self, build: Build) -> None:
        if build.future is None or build.command is None or self._draft is None:
            return
        result = await self._draft.result(build.future, build.command)
        if isinstance(result, BuildResult):
            self._budget.note_steps(result.steps)
            for row, branches in zip(build.served, result.rows, strict=True):
                if self._memories.get(row.sequence.uid) is not None:
                    self._learn_from_branches(row, branches or ())
                    self._file(row, branches)

    def forget(self, sequence: TokenSequence) -> None:
        """The sequence ended or lost its KV: nothing that is kept of it may serve again."""
        self._outcomes.forget(sequence.uid)
        if self._memories.forget(sequence.uid) and self._draft is not None:
            self._draft.tell(ForgetCommand((sequence.uid,)))

    def _length_of(self, sequence: TokenSequence) -> int:
        wanted = sequence.request.speculation.length
        return self._length if wanted is None else min(wanted, self._length)

    def _learn(self, build: Build, results: Sequence[Any]) -> int:
        """From the verdicts; how many tokens the target gave."""
        if build.future is not None:
            self._budget.note_verification(self._clock() - build.started)
        tokens = 0
        for (_, proposal), verdict in zip(build.verified, results, strict=True):
            if not isinstance(verdict, Verdict):
                continue
            tokens += verdict.accepted + 1
            if proposal.guesses:
                self._budget.note_acceptance(len(proposal.token_ids), verdict.accepted)
            if verdict.accepted < len(proposal.guesses):
                self._budget.note_rank(proposal.bonus_rank(verdict.accepted, verdict.bonus))
        return tokens

    def _learn_from_branches(self, row: Served, branches: Sequence[Branch]) -> None:
        """The draft had no guess for the place behind a whole proposal before it read that: it has now."""
        accepted = len(row.sequence.token_ids) - row.length - 1
        if accepted == len(row.sent.token_ids) >= len(row.sent.guesses):
            bonuses = [branch.bonus for branch in branches if branch.accepted == accepted]
            if bonuses:
                bonus = row.sequence.token_ids[-1]
                self._budget.note_rank(bonuses.index(bonus) if bonus in bonuses else None)

    def _may_branch(self, row: Row) -> bool:
        reads_ahead = self._reads_ahead and row.mode is RowMode.SPECULATIVE and row.num_feed > 1
        if row.mode is not RowMode.SSD and not reads_ahead:
            return False
        return len(row.sequence.token_ids) + 2 <= min(row.sequence.max_len, self._max_context)

    def _look_up(self, row: Row) -> Proposal:
        if row.max_drafts < 1 or row.mode is not RowMode.SSD:
            return NOTHING
        sequence = row.sequence
        memory = self._memories.get(sequence.uid)
        if memory is None or memory.built != self._round - 1:
            return NOTHING
        accepted = len(sequence.token_ids) - memory.length - 1
        outcome = Outcome(sequence.uid, sequence.epoch, memory.length, accepted, sequence.token_ids[-1])
        found = self._outcomes.take(outcome) or NOTHING
        return found.served(CACHE_SOURCE, row.max_drafts, looked_up=True)

    async def _fill(
        self, rows: Sequence[Row], proposals: list[Proposal], missing: list[int], sources: Sequence[Source]
    ) -> None:
        """Ask the sources in order for those of `rows` that have nothing; each stops at its first answer."""
        for source in sources:
            missing = [i for i in missing if not proposals[i].token_ids]
            if not missing:
                return
            asked = [
                self._draft_row(rows[i].sequence, rows[i].max_drafts, rows[i].sequence.max_len)
                for i in missing
            ]
            for i, answer in zip(missing, await source.propose(asked), strict=True):
                proposals[i] = answer.served(
                    source.name, rows[i].max_drafts, looked_up=proposals[i].looked_up
                )

    def _branching_row(self, sequence: TokenSequence, sent: Proposal, budget: int) -> DraftRow:
        max_len = min(sequence.max_len, self._max_context)
        return self._draft_row(sequence, self._length_of(sequence), max_len, sent, budget)

    def _draft_row(
        self,
        sequence: TokenSequence,
        length: int,
        max_len: int,
        proposal: Proposal = NOTHING,
        budget: int = 0,
    ) -> DraftRow:
        memory = self._memories.of(sequence.uid)
        memory.settle(sequence.token_ids)
        return DraftRow(
            uid=sequence.uid,
            token_ids=tuple(sequence.token_ids),
            draw=sequence.draw,
            length=length,
            max_len=max_len,
            end_ids=sequence.end_ids,
            proposal=proposal,
            budget=budget,
            prediction=sequence.prediction,
            num_prompt=sequence.num_prompt,
        )

    def _file(self, row: Served, branches: Sequence[Branch] | None) -> None:
        sequence, memory = row.sequence, self._memories.of(row.sequence.uid)
        memory.built, memory.length = self._round if branches is not None else NEVER, row.length
        entries = {
            Outcome(sequence.uid, sequence.epoch, row.length, branch.accepted, branch.bonus): branch.proposal
            for branch in branches or ()
        }
        self._outcomes.stage(sequence.uid, entries)
        self.num_branches += len(entries)
        memory.draft(branches or (), row.sent.token_ids)

"""What a running engine consists of, how it is, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssd_runtime.clock import Clock
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.snapshots import EngineSnapshot, LaneSnapshot, RequestSnapshot
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.telemetry.trace import RecordSink

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer
    from ssd_runtime.sequence import Sequence

JOIN_SECONDS = 10.0


@dataclass(slots=True)
class Parts:
    """Everything that a running engine consists of."""

    core: EngineCore
    speculator: Speculator
    tokenizer: Tokenizer
    limits: Limits
    has_draft: bool
    draft_weight_bytes: int
    clock: Clock
    draft_lane: DraftLane | None
    proposers: list[GuardedProposer]
    trace: RecordSink | None
    model_name: str
    draft_prefix_stats: PrefixStats

    async def run(self) -> None:
        """The engine's life, on the engine's loop."""
        await self.core.run()

    def status(self) -> dict[str, str]:
        """What the draft and each proposer say of themselves, by name; the target where it is not well."""
        target = {"target": self.core.target.status} if self.core.target.status != "ok" else {}
        draft = {"draft": self.draft_lane.status} if self.draft_lane is not None else {}
        return target | draft | {str(proposer.name): proposer.status for proposer in self.proposers}

    def snapshot(self) -> EngineSnapshot:
        """The engine at this moment; callable from any thread."""
        core, scheduler, modes = self.core, self.core.scheduler, self.speculator.modes
        blocks, running, waiting = scheduler.blocks, list(scheduler.running), list(scheduler.waiting)
        return EngineSnapshot(
            running=len(running),
            waiting=len(waiting),
            used_blocks=blocks.num_blocks - blocks.num_free,
            cached_blocks=blocks.num_cached,
            num_blocks=blocks.num_blocks,
            num_preemptions=scheduler.num_preemptions,
            num_swaps=scheduler.preemption.num_swapped,
            swapped=scheduler.preemption.num_swapped_now,
            swap_usage=scheduler.preemption.swap_usage,
            parts=self.status(),
            rounds_by_mode=dict(modes.rounds),
            num_branches=self.speculator.num_branches,
            mode=modes.current,
            requests=(
                *(_request(each, is_running=True) for each in running),
                *(_request(each, is_running=False) for each in waiting),
            ),
            lanes=self._lanes(),
            num_violations=core.num_violations,
            prefix_queries=scheduler.prefix_stats.queries,
            prefix_hits=scheduler.prefix_stats.hits,
            draft_prefix_queries=self.draft_prefix_stats.queries,
            draft_prefix_hits=self.draft_prefix_stats.hits,
        )

    def close(self) -> None:
        """End the lanes, the proposers and the trace; what hangs is not waited for."""
        drafts = () if self.draft_lane is None else (self.draft_lane,)
        threads: tuple[TargetLane | DraftLane | GuardedProposer, ...]
        threads = (self.core.target, *drafts, *self.proposers)
        for thread in threads:
            thread.close()
        for thread in threads:
            thread.join(JOIN_SECONDS)
        if self.trace is not None:
            self.trace.close()

    def _lanes(self) -> dict[str, LaneSnapshot]:
        target, draft = self.core.target, self.draft_lane
        lanes = {"target": LaneSnapshot(target.status, target.num_restarts)}
        return lanes if draft is None else lanes | {"draft": LaneSnapshot(draft.status, draft.num_restarts)}


def _request(sequence: Sequence, *, is_running: bool) -> RequestSnapshot:
    return RequestSnapshot(
        id=sequence.request.id,
        is_running=is_running,
        priority=sequence.request.priority,
        prompt_tokens=sequence.num_prompt,
        completion_tokens=sequence.num_generated,
        max_tokens=sequence.max_len - sequence.num_prompt,
    )

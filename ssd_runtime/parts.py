"""What a running engine consists of, how it is, and its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssd_runtime.clock import Clock
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.engine.reload import Replaceable
from ssd_runtime.snapshots import EngineSnapshot, LaneSnapshot, RequestSnapshot
from ssd_runtime.speculations import JOIN_SECONDS, Speculation, SpeculationMaker
from ssd_runtime.telemetry.trace import RecordSink

if TYPE_CHECKING:
    from ssd_runtime.models.tokenizer import Tokenizer
    from ssd_runtime.sequence import Sequence


@dataclass(slots=True)
class Parts:
    """Everything that a running engine consists of. observers: who hears of rounds, by name.

    `speculation` and `limits` are others after a reload, between two rounds.
    """

    core: EngineCore
    speculator: Replaceable
    speculation: Speculation
    maker: SpeculationMaker
    tokenizer: Tokenizer
    limits: Limits
    clock: Clock
    trace: RecordSink | None
    model_name: str
    observers: tuple[str, ...]

    @property
    def has_draft(self) -> bool:
        """Whether anything is drafted."""
        return self.speculation.draft is not None

    async def run(self) -> None:
        """The engine's life, on the engine's loop."""
        await self.core.run()

    def status(self) -> dict[str, str]:
        """What the draft and each proposer say of themselves, by name; the target where it is not well."""
        target = {"target": self.core.target.status} if self.core.target.status != "ok" else {}
        return target | self.speculation.status()

    def snapshot(self) -> EngineSnapshot:
        """The engine at this moment; callable from any thread."""
        core, scheduler, speculation = self.core, self.core.scheduler, self.speculation
        modes = speculation.speculator.modes
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
            num_branches=speculation.speculator.num_branches,
            mode=modes.current,
            requests=(
                *(_request(each, is_running=True) for each in running),
                *(_request(each, is_running=False) for each in waiting),
            ),
            lanes=self._lanes(),
            num_violations=core.num_violations,
            prefix_queries=scheduler.prefix_stats.queries,
            prefix_hits=scheduler.prefix_stats.hits,
            draft_prefix_queries=speculation.prefix_stats.queries,
            draft_prefix_hits=speculation.prefix_stats.hits,
        )

    def close(self) -> None:
        """End the lanes, the proposers and the trace; what hangs is not waited for."""
        self.core.target.close()
        self.speculation.close()
        self.core.target.join(JOIN_SECONDS)
        self.speculation.join()
        if self.trace is not None:
            self.trace.close()

    def _lanes(self) -> dict[str, LaneSnapshot]:
        target, speculation = self.core.target, self.speculation
        lanes = {"target": LaneSnapshot(target.status, target.num_restarts)}
        if speculation.lane is not None:
            lanes["draft"] = LaneSnapshot(speculation.lane.status, speculation.num_restarts)
        return lanes


def _request(sequence: Sequence, *, is_running: bool) -> RequestSnapshot:
    return RequestSnapshot(
        id=sequence.request.id,
        is_running=is_running,
        priority=sequence.request.priority,
        prompt_tokens=sequence.num_prompt,
        completion_tokens=sequence.num_generated,
        max_tokens=sequence.max_len - sequence.num_prompt,
    )

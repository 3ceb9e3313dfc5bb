"""An engine at one moment, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssd_runtime.types import Mode


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """One request in the engine. max_tokens: where the answer ends at the latest."""

    id: str
    is_running: bool
    priority: int
    prompt_tokens: int
    completion_tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LaneSnapshot:
    """A lane. status: `ok`, or what is the matter; num_restarts: how often a fresh one took its place."""

    status: str = "ok"
    num_restarts: int = 0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """An engine at one moment. `parts`: what the draft and each proposer say of themselves.

    Blocks are of the target's KV cache: used by requests, cached for those that begin alike, or free.
    mode: of requests that do not say, see `RowMode`. requests: those that run, then those that wait, in their
    order. lanes: by role. num_violations: how often the books of the KV cache were found wrong; always 0.
    num_swaps: those of the preemptions that kept the KV in host memory. swapped: requests whose KV is there
    now; swap_usage: the part of `scheduler.swap_space` that they take. rounds_by_mode: rounds of rows, by how
    they were run. num_branches: outcomes for which the draft prepared a proposal. prefix_queries,
    prefix_hits: tokens looked for and found in the target's prefix cache; the draft's has its own.
    """

    running: int = 0
    waiting: int = 0
    used_blocks: int = 0
    num_blocks: int = 1
    num_preemptions: int = 0
    num_swaps: int = 0
    swapped: int = 0
    swap_usage: float = 0.0
    parts: Mapping[str, str] = field(default_factory=dict)
    rounds_by_mode: Mapping[str, int] = field(default_factory=dict)
    num_branches: int = 0
    cached_blocks: int = 0
    mode: str = Mode.AUTOREGRESSIVE
    requests: tuple[RequestSnapshot, ...] = ()
    lanes: Mapping[str, LaneSnapshot] = field(default_factory=dict)
    num_violations: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    draft_prefix_queries: int = 0
    draft_prefix_hits: int = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing."""
        return self.num_blocks - self.used_blocks - self.cached_blocks

    @property
    def troubles(self) -> tuple[str, ...]:
        """The parts that are not in service, by name."""
        return tuple(name for name, status in self.parts.items() if status != "ok")

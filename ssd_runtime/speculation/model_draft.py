"""A language model as a draft: five verbs over states that fork. Lives on the draft's lane.

prefill(rows)        read tokens, no result
extend(rows)         read tokens, logits of the last ones
fork(state, at)      a new state that has read the first `at` tokens of another
commit(trunk, branch) the branch takes the trunk's place
drop(state)          give its memory back
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.prefix import PrefixStats, block_digests
from ssd_runtime.messages import BlockCopy, ForwardRow, StopWord

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.models.native import Ask
    from ssd_runtime.sampling.draw import DraftStep


@dataclass(slots=True, eq=False)
class DraftState:
    """How far a draft has read, and in which blocks its KV lies.

    digests: of the leading blocks that are in the prefix cache.
    """

    length: int = 0
    table: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Feed:
    """Tokens for one state; the last `num_logits` of them want logits."""

    state: DraftState
    token_ids: Sequence[int]
    num_logits: int


class DraftModel(Protocol):
    """A draft with states that fork; every method is batched and runs on the draft's lane.

    `OutOfBlocks` from `prefill`, `extend` or `fork` means that memory is short and nothing changed.
    """

    vocab_size: int
    max_context: int
    weight_bytes: int

    def new(self) -> DraftState: ...
    def prefill(self, feeds: Sequence[Feed]) -> None: ...
    def extend(self, feeds: Sequence[Feed]) -> Tensor: ...
    def fork(self, state: DraftState, at: int) -> DraftState: ...
    def commit(self, trunk: DraftState, branch: DraftState) -> None: ...
    def drop(self, state: DraftState) -> None: ...


@runtime_checkable
class InterruptibleDraft(DraftModel, Protocol):
    """A draft that can give a pass up. Others finish the pass that a stop word finds them in."""

    def extend_until(self, feeds: Sequence[Feed], stop: StopWord | None) -> Tensor: ...


@runtime_checkable
class RememberingDraft(DraftModel, Protocol):
    """A draft that keeps what was read, for whoever begins alike. Others read everything themselves."""

    def recall(self, token_ids: Sequence[int]) -> DraftState:
        """A state that has read the longest known beginning of `token_ids`."""
        ...

    def remember(self, state: DraftState, token_ids: Sequence[int], num_settled: int) -> None:
        """`state` has read a beginning of `token_ids`, whose first `num_settled` are never taken back."""
        ...


class DecoderDraft:
    """A `Decoder` behind the draft's verbs, with a block manager and KV of its own."""

    def __init__(
        self,
        decoder: Decoder,
        kv: PagedKV,
        blocks: BlockManager,
        vocab_size: int,
        prefix_stats: PrefixStats | None = None,
    ) -> None:
        """vocab_size: the target's; the draft's own padding beyond it is never proposed.

        prefix_stats: counts what is found in the prefix cache; without it there is none.
        """
        self.vocab_size = min(vocab_size, decoder.config.vocab_size)
        self.max_context = decoder.config.max_position
        self.weight_bytes = decoder.weight_bytes
        self.decoder = decoder
        self.kv = kv
        self.blocks = blocks
        self._copies: list[BlockCopy] = []
        self.prefix_stats = prefix_stats

    def new(self) -> DraftState:
        """A state that has read nothing."""
        return DraftState()

    def prefill(self, feeds: Sequence[Feed]) -> None:
        """Read tokens; `num_logits` is 0 in every feed."""
        self.extend(feeds)

    def extend(self, feeds: Sequence[Feed]) -> Tensor:
        """Read the tokens of every feed in one pass; logits `[sum of num_logits, vocab_size]`."""
        return self.extend_until(feeds, None)

    def extend_until(self, feeds: Sequence[Feed], stop: StopWord | None) -> Tensor:
        """`extend`, or `Interrupted` when the stop word interrupts the pass: nothing was read then."""
        logits = self.decoder.forward(self._rows(feeds), self.kv, stop)
        self._advance(feeds)
        return logits[:, : self.vocab_size]

    @property
    def can_draw(self) -> bool:
        """Whether `draw` is there."""
        return self.decoder.can_draw

    def draw(
        self, feeds: Sequence[Feed], asks: Sequence[Ask], stop: StopWord | None = None
    ) -> list[DraftStep]:
        """`extend_until`, with a draw for each token that wants logits in place of them."""
        steps, _ = self.decoder.draw(self._rows(feeds), self.kv, asks, self.vocab_size, stop)
        self._advance(feeds)
        return steps

    def _rows(self, feeds: Sequence[Feed]) -> list[ForwardRow]:
        """Room for every feed's tokens, or `OutOfBlocks` and nothing changed."""
        missing = sum(
            self.blocks.blocks_for(feed.state.length + len(feed.token_ids)) - len(feed.state.table)
            for feed in feeds
        )
        self.blocks.require(missing)
        for feed in feeds:
            self.blocks.grow(feed.state.table, feed.state.length + len(feed.token_ids))
        self.kv.copy(self.take_copies())
        return [
            ForwardRow(feed.token_ids, feed.state.length, feed.state.table, feed.num_logits) for feed in feeds
        ]

    def _advance(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            feed.state.length += len(feed.token_ids)

    def fork(self, state: DraftState, at: int) -> DraftState:
        """Share the full blocks before `at`, copy the one that holds it: before the next pass, see below."""
        table, copy = self.blocks.fork(state.table, at)
        if copy is not None:
            self._copies.append(copy)
        return DraftState(at, table)

    def take_copies(self) -> list[BlockCopy]:
        """The copies of forks, which whoever makes the next pass carries out first, in their order.

        In between only passes write: what a copy reads is still there, whoever owns its block by now.
        """
        copies, self._copies = self._copies, []
        return copies

    def commit(self, trunk: DraftState, branch: DraftState) -> None:
        """The trunk takes over the branch's table; nothing is recomputed."""
        known = len(trunk.digests)
        while trunk.table[known - 1 : known] != branch.table[known - 1 : known]:
            known -= 1
        del trunk.digests[known:]
        self.blocks.commit(trunk.table, branch.table)
        trunk.length, branch.length = branch.length, 0

    def drop(self, state: DraftState) -> None:
        """Give the blocks back."""
        self.blocks.drop(state.table)
        state.digests.clear()
        state.length = 0

    def recall(self, token_ids: Sequence[int]) -> DraftState:
        """See `RememberingDraft`."""
        state = DraftState()
        if self.prefix_stats is not None:
            size = self.blocks.block_size
            digests = block_digests(state.digests, token_ids, size, len(token_ids) // size)
            state.table = self.blocks.match(digests)
            del state.digests[len(state.table) :]
            state.length = len(state.table) * size
            self.prefix_stats.count(len(token_ids), state.length)
        return state

    def remember(self, state: DraftState, token_ids: Sequence[int], num_settled: int) -> None:
        """See `RememberingDraft`."""
        size, known = self.blocks.block_size, len(state.digests)
        full = min(num_settled, state.length) // size
        if self.prefix_stats is not None and full > known:
            digests = list(block_digests(state.digests, token_ids, size, full))
            self.blocks.register(state.table[known:full], digests[known:])

"""A sequence: committed tokens and where their KV lies.

`token_ids` holds only tokens that are settled: the prompt, and what was emitted. The last one is
usually *pending*: the target has sampled it, but it has not been fed, so its KV is not there yet.
Nothing speculative is ever stored here.

    0 <= kv_len <= len(token_ids)       positions [0, kv_len) have KV in the blocks of `table`
    token_ids[kv_len:]                  pending: fed by the next forward passes
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ssd_runtime.messages import Draw
from ssd_runtime.stats import RoundTotals
from ssd_runtime.types import Request

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.memory.prediction import Prediction

_uids = itertools.count(1)


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's tokens in the engine, at most `max_len` of them, ended by any of `end_ids`.

    `epoch` changes whenever its KV is thrown away. Of its blocks `num_registered` are in the prefix cache,
    under the first of `digests`. num_cached: tokens of the prompt that were found there. sampler: what the
    target draws with, for its whole life; None is the one that its lane was made with.
    """

    request: Request
    num_prompt: int
    token_ids: list[int]
    draw: Draw
    max_len: int
    end_ids: frozenset[int] = frozenset()
    prediction: Prediction | None = None
    sampler: Sampler | None = None
    uid: int = field(default_factory=lambda: next(_uids))
    table: list[int] = field(default_factory=list)
    kv_len: int = 0
    epoch: int = 0
    digests: list[bytes] = field(default_factory=list)
    num_registered: int = 0
    num_cached: int = 0
    totals: RoundTotals = field(default_factory=RoundTotals)

    @property
    def num_pending(self) -> int:
        """Tokens whose KV is still missing."""
        return len(self.token_ids) - self.kv_len

    @property
    def num_generated(self) -> int:
        """Tokens emitted so far."""
        return len(self.token_ids) - self.num_prompt

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is pending, so that one pass yields the next."""
        return len(self.token_ids) - self.kv_len == 1

    @property
    def num_left(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_len - len(self.token_ids)

    def commit(self, token_ids: list[int], kv_len: int) -> None:
        """Append settled tokens; `kv_len` positions of the sequence now have valid KV."""
        self.token_ids.extend(token_ids)
        self.kv_len = kv_len
        self.check()

    def forget_kv(self) -> None:
        """The KV is gone (preemption): everything is pending again, and old cache entries are void."""
        self.kv_len = self.num_registered = 0
        self.epoch += 1

    def check(self) -> None:
        """Assert the invariants in the module's docstring."""
        assert 0 <= self.kv_len <= len(self.token_ids) <= self.max_len
        assert 0 < self.num_prompt <= len(self.token_ids)

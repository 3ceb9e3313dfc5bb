"""What travels to the lanes and back: small frozen values, no tensors of the vocabulary's size.

A *row* is one sequence in one forward pass. It feeds `token_ids` at absolute positions
`start, start+1, …` of the sequence whose KV lies in the blocks of `block_table`; the KV of all
positions before `start` is there already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Event


@dataclass(frozen=True, slots=True)
class Draw:
    """How the tokens of one row are drawn: the request's warp and its noise seed (64 bits)."""

    seed: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class ForwardRow:
    """One row of one forward pass; `num_logits` of its last tokens need logits (may be 0)."""

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy the KV of the first `num_tokens` slots of block `source` to block `target`, all layers."""

    source: int
    target: int
    num_tokens: int


class StopWord:
    """A flag that one thread sets and a running lane command polls."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = Event()

    def set(self) -> None:
        """Ask the command to finish after the step in hand."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one row's verification: drafts accepted, and the target's token after them."""

    accepted: int
    bonus: int


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why one row has no verdict; the other rows of the command have theirs."""

    message: str


@dataclass(frozen=True, slots=True)
class VerifyRow:
    """One row of a verification: pending tokens, then `drafts`, fed from position `start`.

    Not `samples`: a prefill chunk that is not the prompt's last; its KV is wanted, no token.
    """

    token_ids: tuple[int, ...]
    drafts: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    draw: Draw
    samples: bool = True

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass feeds for this row."""
        return len(self.token_ids) + len(self.drafts)


@dataclass(frozen=True, slots=True)
class VerifyCommand:
    """One forward pass of the target; its result is one `Verdict | RowFailure | None` a row.

    together: whether the draft's lane works at the same time.
    """

    rows: tuple[VerifyRow, ...]
    together: bool = False
    kind: str = "verify"

    @property
    def num_rows(self) -> int:
        """Rows in the pass."""
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        """Tokens fed over all rows."""
        return sum(row.num_tokens for row in self.rows)

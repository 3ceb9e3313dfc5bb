"""What travels to the lanes and back: small frozen values, no tensors of the vocabulary's size.

A *row* is one sequence in one forward pass. It feeds `token_ids` at absolute positions
`start, start+1, …` of the sequence whose KV lies in the blocks of `block_table`; the KV of all
positions before `start` is there already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ctypes import addressof, c_int32
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Sampler
    from ssd_runtime.sampling.odds import Odds
    from ssd_runtime.types import TokenLogprob


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Rules:
    """What a request makes of logits by what was said before, position by position.

    One object for one request: its identity is the key of what lanes remember for it. The fields are
    applied in this order, which is transformers'; the penalties' meaning is in `sampling/processors.py`.

    num_prompt: tokens of the prompt; what follows them is the answer. end_ids: impossible before
    `min_tokens`. grammar, warpers: make the state (`sampling.processors.Processor`) of one lane.
    """

    num_prompt: int
    logit_bias: tuple[tuple[int, float], ...] = ()
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    bad_words: tuple[tuple[int, ...], ...] = ()
    min_tokens: int = 0
    end_ids: frozenset[int] = frozenset()
    allowed_token_ids: tuple[int, ...] | None = None
    grammar: Callable[[], Any] | None = None
    banned_token_ids: tuple[int, ...] = ()
    warpers: tuple[Callable[[], Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Which log probabilities come back with the tokens; the numbers say how many alternatives each.

    processed: those of the distribution that is drawn from, instead of the model's own. The prompt's are
    always the model's own.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    processed: bool = False


@dataclass(frozen=True, slots=True)
class Draw:
    """How the tokens of one row are drawn: the request's warp and its noise seed (64 bits).

    rules: what is done to the logits first, None for nothing. report: what is wanted beside the tokens.
    line: which of a draft's guesses this is, by how many tokens were settled when it began and by its first
    position; only where draft and target do not share their noise does it matter.
    """

    seed: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    rules: Rules | None = None
    report: Report | None = None
    line: tuple[int, int] = (0, 0)

    @property
    def is_plain(self) -> bool:
        """Whether the token is all that is wanted, and logits, warp and noise are all it depends on."""
        return self.rules is None and self.report is None


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


class Interrupted(Exception):
    """A forward pass met its stop word. What it wrote to the KV past `start` is garbage."""


class StopWord:
    """A word that one thread sets and a running lane command polls; native code reads it at `address`."""

    __slots__ = ("_word",)

    def __init__(self) -> None:
        self._word = c_int32(0)

    @property
    def address(self) -> int:
        """Where the 32-bit word lies; what it says is `enum ssd_stop` of `api.h`."""
        return addressof(self._word)

    def set_after_step(self) -> None:
        """Ask the command to finish after the step in hand: most of that is done, and it gives a token."""
        self._word.value = max(self._word.value, 1)

    def set(self) -> None:
        """Ask the command to finish at once: the pass in hand is given up between two layers."""
        self._word.value = 2

    def is_set(self) -> bool:
        """Whether somebody asked, either way."""
        return self._word.value != 0

    def interrupts(self) -> bool:
        """Whether a pass in hand is to be given up."""
        return self._word.value == 2


@dataclass(frozen=True, slots=True)
class Reading:
    """What a chunk of a prompt that samples nothing gave: each token's log p, where that is wanted.

    `first` is the position of the first of them; the row's last token speaks of the one behind it.
    """

    first: int
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one row's verification: drafts accepted, and the target's token after them.

    logprobs: of the accepted drafts and the bonus, where that is wanted; reading: of the prompt.
    """

    accepted: int
    bonus: int
    logprobs: tuple[TokenLogprob, ...] = ()
    reading: Reading | None = None


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why one row has no verdict; the other rows of the command have theirs.

    by_request: the request asks for something impossible; nothing is damaged. accepted: the drafts before
    the place that failed, with their `logprobs`: where one of them ends the answer, nothing has failed.
    """

    message: str
    by_request: bool = False
    accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


RowResult = Verdict | Reading | RowFailure | None
"""None: a chunk of a prompt that samples nothing, and of which nothing else is wanted."""


class VerifyRow(NamedTuple):
    """One row of a verification: pending tokens, then `drafts`, fed from position `start`.

    Not `samples`: a prefill chunk that is not the prompt's last; its KV is wanted, no token.
    text: all tokens of the sequence, the first `num_prompt` of them the prompt. It may grow meanwhile,
    and is needed only where the draw is not plain. odds: what each draft was drawn from, where a sampler
    has told; empty where the drafts were not drawn. sampler: None is the worker's own.
    """

    token_ids: tuple[int, ...]
    drafts: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    draw: Draw
    samples: bool = True
    text: Sequence[int] = ()
    num_prompt: int = 0
    odds: tuple[Odds, ...] = ()
    sampler: Sampler | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that the forward pass feeds for this row."""
        return len(self.token_ids) + len(self.drafts)


class VerifyCommand(NamedTuple):
    """One forward pass of the target; its result is one `RowResult` a row.

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

"""The kinds of parts that plugins provide, as protocols. Plugins implement, the engine calls.

`Quantizer` and `WeightMatrix` are in `models/linear.py`, `DraftModel` is in
`speculation/model_draft.py`. A part that raises or breaks its contract
costs its own work and is named in the log; it never changes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import Request

if TYPE_CHECKING:
    from torch import Tensor

    from ssd_runtime.messages import Draw, Verdict
    from ssd_runtime.sampling.draw import DraftStep
    from ssd_runtime.sampling.odds import Odds


class Proposer(Protocol):
    """Guesses the next tokens of one sequence without a model."""

    def propose(self, token_ids: Sequence[int], k: int) -> Sequence[int]:
        """Up to `k` tokens that may follow `token_ids`; fewer, or none, is fine.

        Runs on the draft lane's thread, once per row that needs a proposal. Pure: it must not keep
        or change `token_ids`. Ids outside the vocabulary make the whole proposal void.
        """
        ...


@runtime_checkable
class Remembering(Protocol):
    """A proposer that hears of finished answers, whosever they are. Only in `engine.fallback`."""

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A request was answered to its end. Runs on the thread that asks for proposals, between two of them.

        Both may be kept, as they are: they do not change any more, and take the memory that
        `engine.history_codec` says; to read one may mean to unpack all of it.
        """
        ...


class Sampler(Protocol):
    """Draws tokens from logits, as each row's request asks."""

    def draw(self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int]) -> Sequence[int]:
        """One token per row of `logits` `[N, V]` float32, which may be overwritten.

        `draws[i]` is row i's warp and seed, `positions[i]` the absolute position of the token drawn.
        The result depends on row i alone. Negative where a row's logits are unusable (not finite).
        """
        ...

    def draft(
        self, logits: Tensor, draws: Sequence[Draw], positions: Sequence[int], count: int
    ) -> Sequence[DraftStep]:
        """What each row of a draft's `logits` `[N, V]` yields: its own token, and `count` candidates.

        The candidates are the tokens that the *target* is likeliest to emit there, best first.
        """
        ...


@runtime_checkable
class Verifier(Protocol):
    """A sampler that judges drafts itself. Others accept a draft where it is their own `draw`."""

    def verify(
        self,
        drafts: Sequence[int],
        drawn_from: Sequence[Odds],
        logits: Iterable[Tensor],
        draw: Draw,
        first: int,
    ) -> Verdict:
        """How many of one row's leading `drafts` are accepted, and the token after them.

        drawn_from: the `odds` of the steps that made the drafts; empty where they were not drawn, as those
        of a proposer. logits: `[1, V]` float32 of the positions from `first` on, one for each draft and one
        more; each is right only if all drafts before it were accepted, and is worked out when asked for.
        """
        ...


class Warper(Protocol):
    """Changes the logits of each token of the answers whose requests name it."""

    def warp(self, logits: Tensor, token_ids: Sequence[int], num_prompt: int) -> Tensor:
        """The logits `[V]` float32 of the token after `token_ids`, of which `num_prompt` are the prompt.

        May change `logits` in place. A function of its arguments alone: it is asked again for the same
        place, by the target and by the draft, each with an object of its own on its lane's thread, where
        others wait for it. -inf is a ban. What it raises or returns wrongly fails its own request only.
        """
        ...


class CachePolicy(Protocol):
    """Shares the branch budget of one row among the possible outcomes of a round."""

    def allot(self, margins: Sequence[float], budget: int) -> Sequence[int]:
        """How many bonus candidates to prepare after 0, 1, …, K accepted tokens.

        `margins[i]` is the draft's margin at position i of the proposal: the difference of its two
        best perturbed scores, large where it is sure. Returns `len(margins) + 1` counts whose sum is
        at most `budget`. Runs on the draft lane's thread, once per row and round.
        """
        ...


class Waiting(Protocol):
    """What an order may look at: one waiting request. `uid` grows with arrival."""

    @property
    def uid(self) -> int: ...
    @property
    def request(self) -> Request: ...
    @property
    def num_prompt(self) -> int: ...


Order = Callable[[Waiting], Any]
"""The sort key of a request; the lowest is served next, the highest preempted first.

Runs on the engine's loop. A key must not change while the request lives. An order whose attribute
`uses_priority` is False looks at no `request.priority`, and requests that have one are refused.
"""


class Observer(Protocol):
    """Hears of every round of every row."""

    def observe(self, record: RoundRecord) -> None:
        """One verdict. Runs on the engine's loop after the tokens were sent: no blocking."""
        ...

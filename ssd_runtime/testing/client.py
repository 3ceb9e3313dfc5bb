"""A client who knows what it should hear, and listens for anything else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ssd_runtime.errors import ComputeError, QueueFullError, SSDError
from ssd_runtime.faces import answer_of
from ssd_runtime.sequence import Sequence
from ssd_runtime.types import Answer, FinishReason, Output, Request, SpeculationParams

COMPARED = ("token_ids", "text", "finish_reason", "seed", "logprobs", "prompt_logprobs")
"""Everything in an answer that does not depend on how it came about."""


def unserved(request: Request) -> Request:
    """The request without anything that only concerns how it is served."""
    return replace(request, prediction=None, priority=0, speculation=SpeculationParams())


def alone(request: Request, seed: int) -> Request:
    """One choice of `request`, without anything that only concerns how it is served."""
    return replace(unserved(request), id="alone", params=replace(request.params, n=1, seed=seed))


@dataclass(eq=False)
class Client:
    """Waits for one choice of a request; `choices` are all of them, `expected` is what it says alone.

    has_left: it wants nothing any more. befallen: a failure was in its way. wrong: what was said and should
    not have been.
    """

    request: Request
    sequence: Sequence
    choices: list[Client]
    expected: Answer
    pieces: list[Output | SSDError] = field(default_factory=list)
    has_left: bool = False
    befallen: bool = False
    wrong: list[str] = field(default_factory=list)

    @property
    def outputs(self) -> list[Output]:
        """What it heard of its answer."""
        return [replace(piece, index=0) for piece in self.pieces if isinstance(piece, Output)]

    @property
    def has_failed(self) -> bool:
        """Whether the last word was an error."""
        return bool(self.pieces) and isinstance(self.pieces[-1], SSDError)

    @property
    def is_done(self) -> bool:
        """Whether it has had the last word."""
        return self.has_failed or any(piece.finish_reason for piece in self.outputs)

    def hear(self, piece: Output | SSDError) -> None:
        """The engine says something: the listener of a request."""
        self._expect(not self.is_done, f"{piece} after the last word")
        self.pieces.append(piece)
        if isinstance(piece, Output):
            self._compare(piece)

    def check_end(self) -> None:
        """Assert that only they failed whom something befell, and that only they were cancelled who left."""
        assert self.is_done, "nobody had a last word for it"
        last = self.pieces[-1]
        if isinstance(last, Output):
            assert self.has_left or last.finish_reason is not FinishReason.CANCELLED
        else:
            assert isinstance(last, QueueFullError) or (isinstance(last, ComputeError) and self.befallen)

    def _compare(self, piece: Output) -> None:
        heard, expected = self.outputs, self.expected
        token_ids = tuple(token for one in heard for token in one.token_ids)
        text = "".join(one.text for one in heard)
        self._expect(token_ids == expected.token_ids[: len(token_ids)], f"tokens {token_ids}")
        self._expect(expected.text.startswith(text), f"text {text!r}")
        if piece.finish_reason not in (None, FinishReason.CANCELLED):
            answer = answer_of(heard)
            for name in COMPARED:
                self._expect(getattr(answer, name) == getattr(expected, name), f"another {name}: {answer}")
            self._check_numbers(answer)

    def _check_numbers(self, answer: Answer) -> None:
        stats = answer.speculation
        self._expect(0 <= stats.accepted_tokens <= stats.draft_tokens, f"counts {stats}")
        self._expect(sum(stats.accepted_per_position) == stats.accepted_tokens, f"counts {stats}")
        self._expect(0 <= stats.hits <= stats.hits + stats.misses <= stats.rounds, f"counts {stats}")

    def _expect(self, fine: bool, otherwise: str) -> None:
        if not fine:
            self.wrong.append(otherwise)

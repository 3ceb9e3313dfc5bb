"""Between the engine and a proposer it does not trust: nothing a proposer does harms a request.

A proposer that raises, hangs or answers rubbish loses this proposal, is named in the log, and is
not asked again after `MAX_FAULTS` faults in a row. Too long an answer is a fault too, not a cut:
who breaks the contract in one way may break it in others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import structlog

from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import Lane
from ssd_runtime.device.supply import LaneLike
from ssd_runtime.hooks.kinds import Remembering
from ssd_runtime.speculation.draft_lane import MAX_FAULTS

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import Proposer
    from ssd_runtime.memory.history import HistoryCodec

log = structlog.get_logger(__name__)

MOST_UNTOLD = 64
"""Finished texts that may wait for a proposer to be told of them."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a proposer did wrong: the kind (logged once each) and the particular case."""

    kind: str
    detail: str


Question = tuple[Sequence[int], int]
"""Token ids, and how many tokens are wanted behind them."""


@dataclass(frozen=True, slots=True)
class RememberCommand:
    """A finished text for a proposer that keeps some; `run` tells it."""

    proposer: Remembering
    token_ids: tuple[int, ...]
    num_prompt: int
    codec: HistoryCodec
    kind: str = "remember"
    num_rows: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens of the text."""
        return len(self.token_ids)

    def run(self) -> Fault | None:
        """What was wrong, if anything; raises nothing, whatever the plugin raises."""
        prompt, answer = self.token_ids[: self.num_prompt], self.token_ids[self.num_prompt :]
        try:
            self.proposer.remember(self.codec(prompt), self.codec(answer))
        except BaseException as error:
            return Fault("raised, told of a text", f"{type(error).__name__}: {error}")
        return None


@dataclass(frozen=True, slots=True)
class ProposeCommand:
    """A round's questions; `run` asks them and checks the answers, on whatever thread it runs."""

    proposer: Proposer
    questions: tuple[Question, ...]
    vocab_size: int
    kind: str = "propose"

    @property
    def num_rows(self) -> int:
        """How many questions."""
        return len(self.questions)

    @property
    def num_tokens(self) -> int:
        """Most tokens that may be proposed."""
        return sum(k for _, k in self.questions)

    def run(self) -> list[tuple[int, ...] | Fault]:
        """The checked answers, or what is wrong with each; raises nothing, whatever the plugin raises."""
        return [self._answer(*question) for question in self.questions]

    def _answer(self, token_ids: Sequence[int], k: int) -> tuple[int, ...] | Fault:
        try:
            return check_answer(self.proposer.propose(token_ids, k), k, self.vocab_size)
        except BaseException as error:  # even SystemExit is only this plugin's opinion
            return Fault("raised", f"{type(error).__name__}: {error}")


class GuardedProposer:
    """A proposer whose answers can be used as they are. Runs on one event loop.

    trusted: built in; called on the loop itself and expected to take microseconds. Others run on a
    thread of their own, all of a round's questions in one go. If that takes longer than `time_limit`
    seconds it costs the proposals: the proposer is not asked again before it has returned, and its late
    answers are dropped.
    """

    def __init__(
        self,
        proposer: Proposer,
        *,
        vocab_size: int,
        time_limit: float,
        trusted: bool,
        name: str | None = None,
        lane: LaneLike | None = None,
        codec: HistoryCodec = tuple,
    ) -> None:
        """`name`: for the log; default: the proposer's own. `lane`: replaces the thread (tests).

        codec: how texts are handed to a proposer that keeps some.
        """
        self.name = name or getattr(proposer, "name", type(proposer).__name__)
        self.time_limit = time_limit
        self._proposer = proposer
        self._vocab_size = vocab_size
        self._owned = None if trusted or lane else Lane(f"proposer-{self.name}", _Worker(), clock=monotonic)
        self._lane = lane or self._owned
        self._turn = asyncio.Lock()
        self._stuck: asyncio.Future[Any] | None = None
        self._consecutive = 0
        self._logged: set[str] = set()
        self._codec = codec
        self._untold = 0

    @property
    def status(self) -> str:
        """`ok`, `faulty` (its last answer was unusable) or `out of service` (it is not asked again)."""
        if self._consecutive >= MAX_FAULTS:
            return "out of service"
        return "faulty" if self._consecutive else "ok"

    async def propose(self, token_ids: Sequence[int], k: int) -> tuple[int, ...]:
        """At most `k` valid token ids, perhaps none. Never raises because of the proposer."""
        return (await self.propose_all([(token_ids, k)]))[0] if k > 0 else ()

    async def propose_all(self, questions: Sequence[Question]) -> list[tuple[int, ...]]:
        """An answer to each question, as `propose` gives it."""
        async with self._turn:
            if not self._may_ask():
                return [()] * len(questions)
            asked = tuple((tuple(token_ids), k) for token_ids, k in questions)
            command = ProposeCommand(self._proposer, asked, self._vocab_size)
            answers = command.run() if self._lane is None else await self._ask(self._lane, command)
        return [self._counted(answer) for answer in answers]

    def remember(self, token_ids: Sequence[int], num_prompt: int) -> None:
        """Tell a proposer that keeps texts of one that is finished; does not wait.

        A proposer that is `MOST_UNTOLD` texts behind is not told of more.
        """
        if self._lane is None or not isinstance(self._proposer, Remembering):
            return
        if self._untold >= MOST_UNTOLD or not self._may_ask():
            return
        command = RememberCommand(self._proposer, tuple(token_ids), num_prompt, self._codec)
        self._untold += 1
        self._lane.submit(command).add_done_callback(self._told)

    def close(self) -> None:
        """End the thread; one that hangs dies with the process."""
        if self._owned is not None:
            self._owned.close()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end, but not for one that hangs; False if it still runs."""
        is_stuck = self._stuck is not None and not self._stuck.done()
        return self._owned is None or self._owned.join(0.0 if is_stuck else timeout)

    def _may_ask(self) -> bool:
        if self._stuck is not None and self._stuck.done():
            self._stuck = None
        return self._stuck is None and self._consecutive < MAX_FAULTS

    async def _ask(self, lane: LaneLike, command: ProposeCommand) -> Sequence[tuple[int, ...] | Fault]:
        future = lane.submit(command)
        await asyncio.wait({future}, timeout=self.time_limit)
        if not future.done():
            self._stuck = future
            self._count(Fault("took too long", f"no answer within {self.time_limit:g} s"))
            return [()] * command.num_rows
        answers: list[tuple[int, ...] | Fault] = future.result()
        return answers

    def _counted(self, answer: tuple[int, ...] | Fault) -> tuple[int, ...]:
        if isinstance(answer, Fault):
            self._count(answer)
            return ()
        if self._stuck is None:
            self._consecutive = 0
        return answer

    def _told(self, future: asyncio.Future[Any]) -> None:
        self._untold -= 1
        if not future.cancelled() and (fault := future.result()) is not None:
            self._count(fault)

    def _count(self, fault: Fault) -> None:
        self._consecutive += 1
        if fault.kind not in self._logged:
            self._logged.add(fault.kind)
            log.warning(
                "a proposer broke its contract; its work is lost, the text is unaffected",
                plugin=self.name,
                fault=fault.kind,
                detail=fault.detail,
            )
        if self._consecutive == MAX_FAULTS:
            log.warning("a proposer is out of service", plugin=self.name, faults=MAX_FAULTS, last=fault.kind)


def check_answer(answer: object, k: int, vocab_size: int) -> tuple[int, ...] | Fault:
    """A proposer's answer as token ids, or the first thing that is wrong with it."""
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        return Fault("wrong type", f"got {shortened(answer)}, expected a sequence of ints")
    if len(answer) > k:
        return Fault("too many tokens", f"got {len(answer)}, expected at most {k}")
    for token_id in answer:
        if not isinstance(token_id, int) or isinstance(token_id, bool):
            return Fault("wrong type", f"got {shortened(token_id)} among the token ids, expected an int")
        if not 0 <= token_id < vocab_size:
            return Fault("token id out of range", f"got {token_id}, expected 0 to {vocab_size - 1}")
    return tuple(answer)


class _Worker:
    def execute(self, command: ProposeCommand | RememberCommand) -> object:
        return command.run()

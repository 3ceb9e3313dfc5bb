"""The guard: a proposer may do what it likes, the engine gets valid tokens or none, in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from ssd_runtime.speculation.guard import MOST_UNTOLD, GuardedProposer, ProposeCommand

VOCAB = 100
PATIENT = 60.0


class Scripted:
    """Answers with whatever its function returns, and counts the questions."""

    name = "scripted"

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.questions: list[tuple[Sequence[int], int]] = []

    def propose(self, token_ids: Sequence[int], k: int) -> Any:
        """Whatever it may be."""
        self.questions.append((token_ids, k))
        return self.answer()


class HeldLane:
    """A lane whose commands run when the test says so."""

    def __init__(self) -> None:
        self.held: asyncio.Queue[tuple[ProposeCommand, asyncio.Future[Any]]] = asyncio.Queue()

    def submit(self, command: Any) -> asyncio.Future[Any]:
        """Keep the command."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.held.put_nowait((command, future))
        return future

    async def release(self) -> None:
        """Run one command, as soon as there is one."""
        command, future = await self.held.get()
        future.set_result(command.run())


def raising(error: BaseException) -> Callable[[], Any]:
    """A function that raises `error`."""

    def answer() -> Any:
        raise error

    return answer


class ListSubclass(list[int]):
    """A valid answer of an unusual type."""


RUBBISH: list[tuple[str, Callable[[], Any], str]] = [
    ("none", lambda: None, "wrong type"),
    ("string", lambda: "abc", "wrong type"),
    ("bytes", lambda: b"abc", "wrong type"),
    ("number", lambda: 7, "wrong type"),
    ("generator", lambda: (token for token in [1, 2]), "wrong type"),
    ("strings", lambda: ["1"], "wrong type"),
    ("floats", lambda: [1.0], "wrong type"),
    ("bools", lambda: [True], "wrong type"),
    ("negative", lambda: [1, -1], "token id out of range"),
    ("vocabulary", lambda: [VOCAB], "token id out of range"),
    ("too-long", lambda: [1] * 5, "too many tokens"),
    ("error", raising(ValueError("no")), "raised"),
    ("exit", raising(SystemExit(3)), "raised"),
    ("stop", raising(StopIteration()), "raised"),
]


def guarded(proposer: Scripted, trusted: bool, **options: Any) -> GuardedProposer:
    """`proposer` behind a guard with all the time in the world."""
    options = {"time_limit": PATIENT, **options}
    return GuardedProposer(proposer, vocab_size=VOCAB, trusted=trusted, **options)


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_proposer_that_is_not_trusted_has_a_thread(trusted: bool) -> None:
    """A trusted one is called where it is asked."""
    name = f"threaded-{not trusted}"
    one = guarded(Scripted(list), trusted, name=name)
    assert any(name in thread.name for thread in threading.enumerate()) == (not trusted)
    one.close()


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("answer", [[], [0], (1, 2), ListSubclass([99, 0, 5, 7]), range(4)])
async def test_valid_answer_passes_unchanged(answer: Sequence[int], trusted: bool) -> None:
    """Up to k ids within the vocabulary, in any sequence, come through as a tuple."""
    guard = guarded(Scripted(lambda: answer), trusted)
    assert await guard.propose([3, 4], 4) == tuple(answer)
    assert guard.status == "ok"
    guard.close()


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize(("answer", "kind"), [r[1:] for r in RUBBISH], ids=[r[0] for r in RUBBISH])
async def test_rubbish_costs_the_proposal_and_names_the_plugin(
    answer: Callable[[], Any], kind: str, trusted: bool
) -> None:
    """Every kind of fault yields no tokens, one log line, and the status `faulty`."""
    guard = guarded(Scripted(answer), trusted)
    with capture_logs() as logs:
        assert await guard.propose([3, 4], 4) == ()
        assert guard.status == "faulty"
        assert await guard.propose([3, 4], 4) == ()
    assert [(entry["plugin"], entry["fault"], entry["log_level"]) for entry in logs] == [
        ("scripted", kind, "warning")
    ]
    guard.close()


async def test_log_shows_what_was_returned_and_what_was_expected() -> None:
    """The detail of a fault has the offending value."""
    guard = guarded(Scripted(lambda: [1, 250]), trusted=True)
    with capture_logs() as logs:
        await guard.propose([3], 4)
    assert logs[0]["detail"] == "got 250, expected 0 to 99"


@pytest.mark.parametrize("trusted", [True, False])
async def test_three_faults_in_a_row_end_its_service(trusted: bool) -> None:
    """After the third fault in succession it is never asked again, and the log says so once."""
    proposer = Scripted(lambda: None)
    guard = guarded(proposer, trusted)
    with capture_logs() as logs:
        for _ in range(6):
            assert await guard.propose([3], 4) == ()
    assert len(proposer.questions) == 3
    assert guard.status == "out of service"
    assert [entry["event"] for entry in logs][1:] == ["a proposer is out of service"]
    guard.close()


async def test_good_answer_forgives_earlier_faults() -> None:
    """Only faults in a row count."""
    answers = iter([None, None, [5], None, None, [6]])
    guard = guarded(Scripted(lambda: next(answers)), trusted=True)
    assert [await guard.propose([3], 4) for _ in range(6)] == [(), (), (5,), (), (), (6,)]
    assert guard.status == "ok"


async def test_hanging_proposer_costs_only_its_limit_and_is_left_alone() -> None:
    """A call that does not return yields nothing, and no second call is made beside it."""
    started, release = threading.Event(), threading.Event()

    def hang() -> list[int]:
        started.set()
        release.wait()
        return [1]

    proposer = Scripted(hang)
    guard = guarded(proposer, trusted=False, time_limit=0.01)
    try:
        assert await guard.propose([3], 4) == ()
        assert await guard.propose([3], 4) == ()
        assert started.wait(PATIENT)
        assert len(proposer.questions) == 1
        assert guard.status == "faulty"
    finally:
        release.set()
        guard.close()


async def test_late_answer_is_dropped_and_the_next_question_is_asked() -> None:
    """Once the late call has returned the proposer is asked again, and answers for the new question."""
    lane, answers = HeldLane(), iter([[1], [2]])
    guard = guarded(Scripted(lambda: next(answers)), trusted=False, time_limit=0, lane=lane)
    assert await guard.propose([3], 4) == ()
    assert await guard.propose([3], 4) == ()
    assert lane.held.qsize() == 1
    await lane.release()
    guard.time_limit = PATIENT
    asking = asyncio.create_task(guard.propose([3], 4))
    await lane.release()
    assert await asking == (2,)
    assert guard.status == "ok"


async def test_rows_are_asked_one_after_another() -> None:
    """Questions for several rows never run beside each other, and each gets its own answer."""
    lane = HeldLane()
    proposer = Scripted(lambda: [len(proposer.questions)])
    guard = guarded(proposer, trusted=False, lane=lane)
    asking = asyncio.gather(*(guard.propose([row], 4) for row in range(3)))
    for _ in range(3):
        await lane.release()
        assert lane.held.empty()
    assert await asking == [(1,), (2,), (3,)]


@pytest.mark.parametrize("trusted", [True, False])
async def test_proposer_cannot_change_the_text(trusted: bool) -> None:
    """It gets a copy that cannot be changed."""
    text = [3, 4]
    proposer = Scripted(list)
    guard = guarded(proposer, trusted)
    await guard.propose(text, 2)
    assert proposer.questions == [((3, 4), 2)]
    assert isinstance(proposer.questions[0][0], tuple)
    guard.close()


async def test_nothing_is_asked_for_no_tokens() -> None:
    """k = 0 is answered without the proposer."""
    proposer = Scripted(lambda: [1])
    assert await guarded(proposer, trusted=True).propose([3], 0) == ()
    assert proposer.questions == []


class Keeper(Scripted):
    """Keeps texts, or does something else with them."""

    def __init__(self, remember: Callable[[], Any] = lambda: None) -> None:
        super().__init__(lambda: [1])
        self.kept: list[tuple[Sequence[int], Sequence[int]]] = []
        self._remember = remember

    def remember(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Keep both."""
        self.kept.append((prompt, answer))
        self._remember()


def keeping(proposer: Scripted, **chosen: Any) -> tuple[GuardedProposer, HeldLane]:
    lane = HeldLane()
    return GuardedProposer(
        proposer, vocab_size=VOCAB, time_limit=PATIENT, trusted=False, lane=lane, **chosen
    ), lane


async def test_a_proposer_that_keeps_texts_is_told_of_those_that_are_finished() -> None:
    """On its own thread, in the form that is configured; nobody waits for it."""
    keeper = Keeper()
    guarded, lane = keeping(keeper, codec=list)
    guarded.remember([1, 2, 3, 4], 1)
    assert keeper.kept == []
    await lane.release()
    assert keeper.kept == [([1], [2, 3, 4])]


async def test_others_are_not_told() -> None:
    """A proposer without `remember` hears of nothing."""
    guarded, lane = keeping(Scripted(lambda: [1]))
    guarded.remember([1, 2, 3, 4], 1)
    assert lane.held.empty()


async def test_what_remembering_raises_is_logged_and_counted() -> None:
    """Three times in a row, and it is neither told nor asked any more."""
    guarded, lane = keeping(Keeper(raising(SystemExit(3))))
    with capture_logs() as logs:
        for _ in range(3):
            guarded.remember([1, 2], 1)
            await lane.release()
            await asyncio.sleep(0)
    assert [entry.get("fault") for entry in logs if "fault" in entry] == ["raised, told of a text"]
    assert guarded.status == "out of service"
    guarded.remember([1, 2], 1)
    assert lane.held.empty()


async def test_a_proposer_that_is_far_behind_is_told_no_more() -> None:
    """Texts do not pile up in front of one that hangs."""
    guarded, lane = keeping(Keeper())
    for _ in range(MOST_UNTOLD + 10):
        guarded.remember([1, 2], 1)
    assert lane.held.qsize() == MOST_UNTOLD
    await lane.release()
    await asyncio.sleep(0)
    guarded.remember([1, 2], 1)
    assert lane.held.qsize() == MOST_UNTOLD

"""The order of a round, proved on scripted lanes: nothing here depends on time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import Lane
from ssd_runtime.errors import EngineClosedError, EngineError, QueueFullError
from ssd_runtime.messages import Verdict
from ssd_runtime.speculation.commands import Branch, BuildCommand, BuildResult, DraftCommand, ForgetCommand
from ssd_runtime.speculation.proposal import Proposal
from ssd_runtime.testing.rig import Rig, draft_worker, settle
from ssd_runtime.testing.scripted import ScriptedDraft, continuing
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import FinishReason, Mode, Output, Request, SamplingParams

MODEL = toy_decoder(1)
PROMPT = (5, 6, 7)


def request(name: str = "a", max_tokens: int = 8, stop: int | None = None) -> Request:
    params = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        ignore_eos=True,
        seed=1,
        stop_token_ids=() if stop is None else (stop,),
    )
    return Request(name, prompt_token_ids=PROMPT, params=params)


async def plain(*requests: Request) -> list[tuple[int, ...]]:
    answers = await Rig(MODEL, mode=Mode.AUTOREGRESSIVE).answers(*requests)
    return [answer.token_ids for answer in answers]


def by_hand(max_batch_size: int = 4) -> Rig:
    """A rig whose commands wait for the test; it has a draft that nobody asks to work."""
    return Rig(
        MODEL, draft_worker(ScriptedDraft(continuing([]))), automatic=False, max_batch_size=max_batch_size
    )


def heard(rig: Rig) -> list[Output]:
    """What request a's listener heard so far; no error."""
    return [piece for piece in rig.pieces["a"] if isinstance(piece, Output)]


async def begin(rig: Rig) -> asyncio.Task[None]:
    """A round up to where it waits."""
    task = asyncio.create_task(rig.core.run_round())
    await settle()
    return task


async def test_the_build_starts_before_the_verdict() -> None:
    """Both lanes have their commands while nothing is done yet."""
    rig = by_hand()
    rig.submit(request())
    round_ = await begin(rig)
    assert rig.journal == [("target", "submitted", "verify"), ("draft", "submitted", "build")]
    assert not round_.done()
    round_.cancel()


async def test_commit_and_streaming_come_before_the_build_is_awaited() -> None:
    """The listener hears the token while the build is still at work."""
    rig = by_hand()
    sequence = rig.submit(request())
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    await settle()
    assert sequence.token_ids == [*PROMPT, 9]
    assert rig.pieces["a"] == [Output("a", chr(31 + 9), (9,), prompt_token_ids=tuple(PROMPT))]
    assert [type(command) for command in rig.draft.pending] == [BuildCommand]
    assert not round_.done()
    round_.cancel()


async def test_without_a_build_text_is_sent_while_the_target_is_at_its_next_pass() -> None:
    """Nobody waits for the detokeniser; the last piece follows at once, since no other pass does."""
    rig = Rig(MODEL, automatic=False, mode=Mode.AUTOREGRESSIVE)
    sequence = rig.submit(request(max_tokens=2))
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    await round_
    assert sequence.token_ids == [*PROMPT, 9]
    assert rig.pieces["a"] == []
    round_ = await begin(rig)
    assert rig.pieces["a"] == [Output("a", chr(31 + 9), (9,), prompt_token_ids=tuple(PROMPT))]
    rig.target.complete([Verdict(0, 10)])
    await round_
    assert [piece.token_ids for piece in heard(rig)] == [(9,), (10,)]


async def test_a_token_is_not_held_back_while_the_draft_proposes_the_next_ones() -> None:
    """The first one least of all: before the proposal the draft reads the whole prompt."""
    draft = draft_worker(ScriptedDraft(continuing([])))
    rig = Rig(MODEL, draft, automatic=False, mode=Mode.SPECULATIVE)
    rig.submit(request(max_tokens=3))
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    await round_
    round_ = await begin(rig)
    assert [type(command) for command in rig.draft.pending] == [DraftCommand]
    assert [piece.token_ids for piece in heard(rig)] == [(9,)]
    round_.cancel()


async def test_between_two_rounds_nobody_works_out_text() -> None:
    """Also not when the engine looks whether anybody has left, which nobody has."""
    rig = Rig(MODEL, automatic=False, mode=Mode.AUTOREGRESSIVE)
    rig.submit(request(max_tokens=2))
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    await round_
    rig.core._apply_cancellations()
    assert rig.pieces["a"] == []


async def test_a_cancelled_request_hears_first_of_the_tokens_before() -> None:
    """Also when their text had not been worked out yet."""
    rig = Rig(MODEL, automatic=False, mode=Mode.AUTOREGRESSIVE)
    sequence = rig.submit(request())
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    await round_
    rig.core.cancel(sequence)
    rig.core._apply_cancellations()
    ends = [(piece.token_ids, piece.finish_reason) for piece in heard(rig)]
    assert ends == [((9,), None), ((), FinishReason.CANCELLED)]


async def test_the_verdict_stops_the_build() -> None:
    """The stop word is set with the verdict, not before and not later."""
    rig = by_hand()
    rig.submit(request())
    round_ = await begin(rig)
    stop = rig.draft.pending[0].stop
    assert not stop.is_set()
    rig.target.complete([Verdict(0, 9)])
    await settle()
    assert stop.is_set()
    round_.cancel()


async def test_a_prepared_outcome_is_proposed_and_verified_in_the_next_round() -> None:
    """Exactly the branch of the outcome that happened is sent to the target."""
    rig = by_hand()
    rig.submit(request())
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    branches = (Branch(0, 8, Proposal((1, 1))), Branch(0, 9, Proposal((2, 3, 4))))
    rig.draft.complete(BuildResult((branches,)))
    await round_
    round_ = await begin(rig)
    row = rig.target.pending[0].rows[0]
    assert (row.token_ids, row.drafts, row.start) == ((9,), (2, 3, 4), 3)
    round_.cancel()


async def test_a_miss_of_one_row_leaves_the_others_proposals_alone() -> None:
    """Rows a and c hit, row b was prepared for another token and sends none."""
    rig = by_hand()
    for name in "abc":
        rig.submit(request(name))
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9), Verdict(0, 10), Verdict(0, 11)])
    rig.draft.complete(
        BuildResult(
            (
                (Branch(0, 9, Proposal((1, 2))),),
                (Branch(0, 12, Proposal((3, 4))),),
                (Branch(0, 11, Proposal((5, 6, 7))),),
            )
        )
    )
    await round_
    round_ = await begin(rig)
    assert [row.drafts for row in rig.target.pending[0].rows] == [(1, 2), (), (5, 6, 7)]
    round_.cancel()


async def test_what_was_prepared_serves_one_round_only() -> None:
    """A build that is lost leaves no proposals of the round before."""
    rig = by_hand()
    rig.submit(request())
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9)])
    rig.draft.complete(BuildResult(((Branch(0, 9, Proposal((2, 3))),),)))
    await round_
    for _ in range(2):
        round_ = await begin(rig)
        rig.target.complete([Verdict(0, 9)])
        rig.draft.fail(RuntimeError("lost"))
        await round_
    round_ = await begin(rig)
    assert rig.target.pending[0].rows[0].drafts == ()
    assert [record.looked_up for record in rig.records] == [False, True, False]
    round_.cancel()


async def test_a_cancel_in_the_middle_of_a_build_takes_effect_between_rounds() -> None:
    """Nothing that the lanes use changes under them; then the blocks are free and the draft forgets."""
    rig = by_hand()
    running = asyncio.create_task(rig.core.run())
    sequence = rig.submit(request())
    await settle()
    table = list(sequence.table)
    rig.core.cancel(sequence)
    await settle()
    assert sequence.table == table
    assert rig.pieces["a"] == []
    rig.target.complete([Verdict(0, 9)])
    await settle()
    rig.draft.complete(BuildResult(((Branch(0, 9, Proposal((2,))),),)))
    await settle()
    last = rig.pieces["a"][-1]
    assert isinstance(last, Output)
    assert last.finish_reason is FinishReason.CANCELLED
    assert rig.draft.pending == [ForgetCommand((sequence.uid,))]
    assert rig.blocks.num_free == rig.blocks.num_blocks
    rig.draft.complete(None)
    rig.core.close()
    await running


async def test_a_row_that_ends_leaves_the_others_in_the_same_build_their_branches() -> None:
    """Row a ends with this round's token while the build for a and b is in flight."""
    rig = by_hand()
    rig.submit(request("a", stop=9))
    rig.submit(request("b"))
    round_ = await begin(rig)
    rig.target.complete([Verdict(0, 9), Verdict(0, 10)])
    await settle()
    assert rig.answer("a").finish_reason is FinishReason.STOP
    rig.draft.complete(BuildResult(((Branch(0, 8, Proposal((1,))),), (Branch(0, 10, Proposal((2,))),))))
    await round_
    round_ = await begin(rig)
    assert [row.drafts for row in rig.target.pending[0].rows] == [(2,)]
    round_.cancel()


async def test_a_request_that_joins_in_the_middle_of_a_build_waits_for_the_next_round() -> None:
    """The round in flight is as it was; the next one holds both."""
    rig = by_hand()
    rig.submit(request("a"))
    round_ = await begin(rig)
    rig.submit(request("b"))
    rig.target.complete([Verdict(0, 9)])
    await settle()
    rig.draft.complete(BuildResult(((Branch(0, 9, Proposal((1, 2))),),)))
    await round_
    round_ = await begin(rig)
    assert [(row.token_ids, row.drafts) for row in rig.target.pending[0].rows] == [
        ((9,), (1, 2)),
        (PROMPT, ()),
    ]
    round_.cancel()


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4])
async def test_a_verdict_during_the_dth_pass_of_branches_yields_proposals_of_length_d(depth: int) -> None:
    """On a real lane, held by the test: pass 0 reads the prompt, every later one extends the branches."""
    [text] = await plain(request(max_tokens=12))
    permits, reached = threading.Semaphore(0), threading.Semaphore(0)

    def before_pass(number: int) -> None:
        reached.release()
        permits.acquire()

    draft = ScriptedDraft(continuing([PROMPT + text]), before_pass=before_pass)
    lane = Lane("draft", draft_worker(draft), clock=monotonic)
    rig = Rig(MODEL, start_draft=lambda: lane, automatic=False)
    rig.submit(request(max_tokens=12))
    round_ = await begin(rig)
    for _ in range(depth):
        await asyncio.to_thread(reached.acquire)
        permits.release()
    await asyncio.to_thread(reached.acquire)
    rig.target.complete([Verdict(0, text[0])])
    await settle()
    permits.release()
    await round_
    assert len(draft.passes) == depth + 1
    round_ = await begin(rig)
    assert rig.target.pending[0].rows[0].drafts == text[1 : 1 + depth]
    round_.cancel()
    permits.release(100)
    lane.close()
    assert await asyncio.to_thread(lane.join, 10.0)


async def test_a_full_queue_refuses_and_forgets_nothing() -> None:
    """The error names the setting; those that wait are served."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE, max_queue=1)
    rig.submit(request("a"))
    rig.submit(request("b"))
    await rig.run()
    assert len(rig.answer("a").token_ids) == 8
    with pytest.raises(QueueFullError, match="max_queue"):
        rig.answer("b")


async def test_closing_gives_every_request_its_last_word() -> None:
    """Running, waiting and late requests all hear that the engine was closed."""
    rig = by_hand(max_batch_size=1)
    running = asyncio.create_task(rig.core.run())
    rig.submit(request("running"))
    rig.submit(request("waiting"))
    await settle()
    rig.core.close()
    rig.target.complete([Verdict(0, 9)])
    await settle()
    rig.draft.complete(BuildResult((None,)))
    await running
    rig.submit(request("late"))
    for name in ("running", "waiting", "late"):
        with pytest.raises(EngineClosedError):
            rig.answer(name)


async def test_a_fault_in_the_engine_itself_ends_every_request_with_an_error() -> None:
    """Nobody waits for ever: a receiver of records that raises is a fault of the engine."""
    rig = Rig(MODEL, mode=Mode.AUTOREGRESSIVE)
    rig.records = Full()  # type: ignore[assignment]
    rig.core = rig._core()
    rig.submit(request("a"))
    rig.submit(request("b"))
    with pytest.raises(OverflowError):
        await rig.core.run()
    for name in ("a", "b"):
        with pytest.raises(EngineError, match="the engine stopped"):
            rig.answer(name)


class Full:
    """Takes no record."""

    def append(self, record: object) -> None:
        """Never."""
        raise OverflowError("full")

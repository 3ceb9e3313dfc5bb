"""What is counted: after truncation, possible numbers only, no division by zero."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.engine.stopping import AnswerEnd
from ssd_runtime.messages import Verdict
from ssd_runtime.stats import RoundRecord, RoundTotals
from ssd_runtime.testing.rig import Rig, draft_worker, settle
from ssd_runtime.testing.scripted import ScriptedDraft, surely
from ssd_runtime.testing.toy import toy_decoder
from ssd_runtime.types import Mode, Request, SamplingParams


def record(proposed: int, accepted: int, source: str = "cache", looked_up: bool = True) -> RoundRecord:
    return RoundRecord("r", source if proposed else "none", looked_up, proposed, accepted, accepted + 1)


@st.composite
def records(draw: st.DrawFn) -> RoundRecord:
    proposed = draw(st.integers(0, 8))
    source = draw(st.sampled_from(("cache", "ngram", "draft")))
    return record(proposed, draw(st.integers(0, proposed)), source, draw(st.booleans()))


@given(st.lists(records(), max_size=30))
def test_rates_are_rates(rounds: list[RoundRecord]) -> None:
    """Case B66: between 0 and 1, or none; accepted positions never rise and sum to the accepted."""
    totals = RoundTotals.of(rounds)
    positions = totals.accepted_per_position
    assert sum(positions) == totals.accepted_tokens <= totals.draft_tokens
    assert positions == sorted(positions, reverse=True)
    assert totals.hits + totals.misses == sum(one.looked_up for one in rounds)
    for rate in (totals.acceptance_rate, totals.hit_rate):
        assert rate is None or 0 <= rate <= 1


def test_without_drafts_there_is_no_rate() -> None:
    """None, never a division by zero, nor a 0 that looks measured."""
    for totals in (RoundTotals(), RoundTotals.of([record(0, 0, looked_up=False)])):
        assert (totals.acceptance_rate, totals.mean_acceptance_length, totals.hit_rate) == (None, None, None)
    assert RoundTotals.of([record(0, 0)]).hit_rate == 0


def test_the_definitions_by_hand() -> None:
    """A hit of 4 of which 3 were right, a fallback of 2 of which none was, a miss without proposal."""
    totals = RoundTotals.of([record(4, 3), record(2, 0, "ngram"), record(0, 0)])
    assert (totals.rounds, totals.hits, totals.misses) == (3, 1, 2)
    assert (totals.draft_tokens, totals.accepted_tokens) == (6, 3)
    assert totals.accepted_per_position == [1, 1, 1]
    assert totals.acceptance_rate == 1 / 2
    assert totals.mean_acceptance_length == 1 + 3 / 3
    assert totals.hit_rate == 1 / 3


async def test_drafts_behind_the_end_are_not_counted() -> None:
    """Case B65: of five right drafts the third ends the answer; three were proposed, accepted, emitted."""
    draft = ScriptedDraft(lambda token_ids: surely(len(token_ids)))
    rig = Rig(
        toy_decoder(1), draft_worker(draft), mode=Mode.SPECULATIVE, length=5, automatic=False, context=64
    )
    params = SamplingParams(temperature=0, max_tokens=20, stop=(chr(31 + 6),), ignore_eos=True)
    rig.submit(Request("r", prompt_token_ids=(1, 2, 3), params=params))
    await rig_round(rig, Verdict(0, 3), drafts=False)
    await rig_round(rig, Verdict(5, 9), drafts=True)
    last = rig.records[-1]
    assert (last.proposed, last.accepted, last.emitted) == (3, 3, 3)
    assert rig.answer("r").token_ids == (3, 4, 5, 6)
    assert rig.answer("r").speculation.accepted_per_position == (1, 1, 1)


async def rig_round(rig: Rig, verdict: Verdict, *, drafts: bool) -> None:
    """One round in which the draft does its work at once and the target says `verdict`."""
    import asyncio

    task = asyncio.create_task(rig.core.run_round())
    await settle()
    if drafts:
        rig.draft.execute()
        await settle()
    rig.target.complete([verdict])
    await task


def test_an_answer_end_is_where_the_truncation_happens() -> None:
    """The counters see what was emitted, since they are fed from it."""

    class Text:
        def push(self, token_ids: object) -> str:
            return ""

        def flush(self) -> str:
            return ""

    end = AnswerEnd(Text(), end_ids=(6,), stop_strings=(), max_tokens=9)
    assert end.take((4, 5, 6, 7, 8))[0] == (4, 5, 6)

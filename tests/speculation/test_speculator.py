"""Where a row's proposal comes from, in every mode, and what a build's end leaves behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ssd_runtime.clock import ManualClock
from ssd_runtime.engine.scheduler import BatchRow
from ssd_runtime.messages import Draw, RowFailure, Verdict
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.commands import Branch, BuildCommand, BuildResult, DraftRow, ForgetCommand
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import Source
from ssd_runtime.speculation.memory import Memories, likelihoods
from ssd_runtime.speculation.mode_control import FixedMode
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.speculation.proposal import Guess, Proposal
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.testing.scripted import ScriptedLane
from ssd_runtime.types import Mode, Request, RowMode, SpeculationParams


class Known:
    """A source that proposes the same tokens for the rows it knows."""

    def __init__(self, name: str, tokens: dict[int, tuple[int, ...]]) -> None:
        self.name = name
        self.needs_draft = name == "draft"
        self.asked: list[list[int]] = []
        self.tokens = tokens

    async def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """See `Source`."""
        self.asked.append([row.uid for row in rows])
        return [Proposal(self.tokens.get(row.uid, ())) for row in rows]


def sequence(wanted: SpeculationParams | None = None, max_len: int = 50) -> TokenSequence:
    request = Request("r", speculation=wanted or SpeculationParams())
    return TokenSequence(request, 3, [1, 2, 3, 4], Draw(0, 0.0), max_len, kv_len=3)


class Play:
    """A speculator with a scripted draft; `round` plays take, branch and stage."""

    def __init__(
        self,
        mode: Mode | RowMode = Mode.SSD,
        fallback: Sequence[Source] = (),
        context: int = 100,
        lookups: Sequence[Source] = (),
        reads_ahead: bool = False,
    ) -> None:
        self.lane = ScriptedLane()
        self.memories = Memories()
        self.drafting = Known("draft", {})
        self.speculator = Speculator(
            draft=DraftLane(lambda: self.lane, name="d", patience=lambda: 60.0),
            drafting=self.drafting,
            fallback=fallback,
            lookups=lookups,
            memories=self.memories,
            modes=Modes(FixedMode(RowMode(mode)), has_draft=True),
            budget=BudgetChooser(4, 4),
            length=4,
            max_context=context,
            clock=lambda: 0.0,
            reads_ahead=reads_ahead,
        )

    def rows(self, *sequences: TokenSequence) -> list[BatchRow]:
        planned = [(one, *self.speculator.plan(one)) for one in sequences]
        return [BatchRow(one, 1, max_drafts, mode) for one, mode, max_drafts in planned]

    async def round(
        self, sequences: Sequence[TokenSequence], verdicts: Sequence[Verdict], result: BuildResult
    ) -> list[Proposal]:
        """The proposals; then the verdicts are committed and the build gives `result`."""
        rows = self.rows(*sequences)
        proposals = await self.speculator.take(rows)
        build = self.speculator.branch(rows, proposals)
        for one, proposal, verdict in zip(sequences, proposals, verdicts, strict=True):
            tokens = [*proposal.token_ids[: verdict.accepted], verdict.bonus]
            one.commit(tokens, len(one.token_ids) + verdict.accepted)
        if self.lane.pending:
            self.lane.complete(result)
        await self.speculator.stage(build, verdicts)
        return proposals


def prepared(*branches: Branch) -> BuildResult:
    return BuildResult((branches,))


async def test_only_the_exact_outcome_is_a_hit() -> None:
    """Same accepted length and same bonus."""
    for bonus, hit in ((9, True), (8, False)):
        play, one = Play(), sequence()
        await play.round([one], [Verdict(0, bonus)], prepared(Branch(0, 9, Proposal((5, 6)))))
        [proposal] = await play.speculator.take(play.rows(one))
        assert play.speculator.num_branches == 1
        assert proposal.token_ids == ((5, 6) if hit else ())
        assert (proposal.source, proposal.looked_up) == ("cache" if hit else "none", True)


async def test_a_miss_walks_along_the_sources_until_one_answers() -> None:
    """Row by row; who has a proposal is not asked about again."""
    hit, first_knows, second_knows, nobody = (sequence() for _ in range(4))
    first, second = Known("first", {first_knows.uid: (1,)}), Known("second", {second_knows.uid: (2, 2)})
    play, four = Play(fallback=(first, second)), [hit, first_knows, second_knows, nobody]
    first_round = [(Branch(0, 9, Proposal((5,))),), (), (), ()]
    await play.round(four, [Verdict(0, 9)] * 4, BuildResult(tuple(first_round)))
    first.asked.clear()
    second.asked.clear()
    proposals = await play.speculator.take(play.rows(*four))
    assert [proposal.source for proposal in proposals] == ["cache", "first", "second", "none"]
    assert [proposal.token_ids for proposal in proposals] == [(5,), (1,), (2, 2), ()]
    assert first.asked == [[first_knows.uid, second_knows.uid, nobody.uid]]
    assert second.asked == [[second_knows.uid, nobody.uid]]
    assert all(proposal.looked_up for proposal in proposals)


async def test_a_build_that_was_not_ready_is_no_miss() -> None:
    """The draft still read the prompt: nothing was looked up, the sources are asked all the same."""
    one = sequence()
    play = Play(fallback=(Known("first", {one.uid: (3,)}),))
    await play.round([one], [Verdict(0, 9)], BuildResult((None,)))
    [proposal] = await play.speculator.take(play.rows(one))
    assert (proposal.token_ids, proposal.looked_up) == ((3,), False)


async def test_a_changed_epoch_makes_what_was_prepared_void() -> None:
    """Preempted after the build and back with the same tokens."""
    play, one = Play(), sequence()
    await play.round([one], [Verdict(0, 9)], prepared(Branch(0, 9, Proposal((5, 6)))))
    one.forget_kv()
    play.speculator.forget(one)
    [proposal] = await play.speculator.take(play.rows(one))
    assert proposal.token_ids == ()
    assert play.lane.commands[-1] == ForgetCommand((one.uid,))


async def test_the_epoch_alone_makes_what_was_prepared_void() -> None:
    """Also where nobody was told to forget it: what is looked up names the KV that it was prepared for."""
    play, one = Play(), sequence()
    await play.round([one], [Verdict(0, 9)], prepared(Branch(0, 9, Proposal((5, 6)))))
    one.forget_kv()
    [proposal] = await play.speculator.take(play.rows(one))
    assert (proposal.token_ids, proposal.looked_up) == ((), True)


async def test_a_build_that_ends_after_its_sequence_files_nothing() -> None:
    """Forgotten between verdict and build's end: no memory comes back."""
    play, one = Play(), sequence()
    rows = play.rows(one)
    build = play.speculator.branch(rows, await play.speculator.take(rows))
    play.speculator.forget(one)
    play.lane.complete(prepared(Branch(0, 9, Proposal((5,)))))
    await play.speculator.stage(build, [Verdict(0, 9)])
    assert play.memories.get(one.uid) is None
    assert len(play.speculator._outcomes) == 0


@pytest.mark.parametrize("mode", [Mode.AUTOREGRESSIVE, Mode.SPECULATIVE])
async def test_other_modes_build_and_look_up_nothing(mode: Mode) -> None:
    """A mode is what it says."""
    play, one = Play(mode), sequence()
    for _ in range(3):
        [proposal] = await play.round([one], [Verdict(0, 9)], BuildResult(()))
        assert not proposal.looked_up
    assert play.lane.commands == []
    assert len(play.drafting.asked) == (3 if mode is Mode.SPECULATIVE else 0)


async def test_a_request_overrides_the_mode_and_the_length() -> None:
    """Off means off, whatever the engine's mode; a length may be shorter, never longer."""
    plan = Play(Mode.SPECULATIVE).speculator.plan
    assert plan(sequence(SpeculationParams(enabled=False))) == (RowMode.AUTOREGRESSIVE, 0)
    assert plan(sequence(SpeculationParams(mode=Mode.AUTOREGRESSIVE))) == (RowMode.AUTOREGRESSIVE, 0)
    assert plan(sequence(SpeculationParams(length=2))) == (RowMode.SPECULATIVE, 2)
    assert plan(sequence(SpeculationParams(length=40))) == (RowMode.SPECULATIVE, 4)
    assert plan(sequence(SpeculationParams(mode=Mode.SSD))) == (RowMode.SSD, 4)


@pytest.mark.parametrize(
    ("max_len", "context", "expected"), [(50, 100, 4), (8, 100, 3), (5, 100, 0), (50, 7, 2)]
)
def test_drafts_end_where_the_sequence_or_the_drafts_context_does(
    max_len: int, context: int, expected: int
) -> None:
    """One place is left for the bonus."""
    assert Play(context=context).speculator.plan(sequence(max_len=max_len)) == (RowMode.SSD, expected)


async def test_beyond_the_drafts_context_proposers_without_a_model_go_on() -> None:
    """The draft is neither asked nor made to branch; its context is not theirs."""
    other = Known("other", {})
    play = Play(Mode.SSD, fallback=[other], context=5)
    one = sequence()
    other.tokens = {one.uid: (7, 8)}
    [proposal] = await play.round([one], [Verdict(2, 9)], prepared())
    assert (proposal.token_ids, proposal.source) == ((7, 8), "other")
    assert play.lane.commands == []


async def test_in_a_crowd_only_lookups_are_asked() -> None:
    """Neither the outcome cache nor the fallbacks nor the draft; nothing is prepared."""
    fallback, lookup = Known("fallback", {}), Known("lookup", {})
    play = Play(RowMode.LOW_LATENCY, fallback=[fallback], lookups=[lookup])
    one = sequence()
    lookup.tokens = {one.uid: (7,)}
    [proposal] = await play.round([one], [Verdict(1, 9)], prepared())
    assert (proposal.token_ids, proposal.source, proposal.looked_up) == ((7,), "lookup", False)
    assert (fallback.asked, play.drafting.asked, play.lane.commands) == ([], [], [])
    assert not play.speculator.will_branch(play.rows(one))


async def test_what_was_prepared_before_the_mode_changed_is_not_counted_as_a_miss_after_it() -> None:
    """A look-up is made for the round behind a build, or not at all."""
    play, one = Play(), sequence()
    await play.round([one], [Verdict(0, 9)], prepared(Branch(0, 9, Proposal((5,)))))
    fixed = FixedMode(RowMode.AUTOREGRESSIVE)
    play.speculator.modes = Modes(fixed, has_draft=True)
    await play.round([one], [Verdict(0, 9)], prepared())
    fixed.mode = RowMode.SSD
    [proposal] = await play.round([one], [Verdict(0, 9)], prepared())
    assert not proposal.looked_up


async def test_where_there_is_no_room_for_drafts_nothing_is_looked_up() -> None:
    """Neither a hit nor a miss, although the very outcome was prepared."""
    play, one = Play(), sequence(max_len=6)
    await play.round([one], [Verdict(0, 9)], prepared(Branch(0, 9, Proposal((5,)))))
    assert play.rows(one)[0].max_drafts == 0
    [proposal] = await play.round([one], [Verdict(0, 9)], prepared())
    assert (proposal.token_ids, proposal.looked_up) == ((), False)


async def test_in_another_mode_what_was_prepared_is_not_served() -> None:
    """Also where there is room for it."""
    play, one = Play(), sequence()
    await play.round([one], [Verdict(0, 9)], prepared(Branch(0, 9, Proposal((5,)))))
    play.speculator.modes = Modes(FixedMode(RowMode.SPECULATIVE), has_draft=True)
    [proposal] = await play.round([one], [Verdict(0, 9)], prepared())
    assert (proposal.token_ids, proposal.looked_up) == ((), False)


async def test_prepared_outcomes_are_counted_over_all_rounds() -> None:
    """One a branch, whoever takes it."""
    play, one = Play(), sequence()
    for _ in range(3):
        two = (Branch(0, 9, Proposal((5,))), Branch(0, 8, Proposal((6,))))
        await play.round([one], [Verdict(0, 7)], prepared(*two))
    assert play.speculator.num_branches == 6


async def test_how_long_a_verification_takes_is_what_the_budget_hears() -> None:
    """From the draft's start to the verdicts."""

    class Hearing(BudgetChooser):
        def note_verification(self, seconds: float) -> None:
            """Notes them."""
            heard.append(seconds)

    play, heard, clock = Play(), list[float](), ManualClock()
    play.speculator._clock, play.speculator._budget = clock, Hearing(4, 4)
    rows = play.rows(sequence())
    build = play.speculator.branch(rows, await play.speculator.take(rows))
    clock.advance(0.25)
    play.lane.complete(prepared())
    await play.speculator.stage(build, [Verdict(0, 9)])
    assert heard == [0.25]


class Hearing(BudgetChooser):
    """Notes what it is told of outcomes."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.accepted: list[tuple[int, int]] = []
        self.ranks: list[int | None] = []

    def note_acceptance(self, proposed: int, accepted: int) -> None:
        """Notes them."""
        self.accepted.append((proposed, accepted))

    def note_rank(self, rank: int | None) -> None:
        """Notes it."""
        self.ranks.append(rank)


GUESSES = (Guess((5, 6), 1.0), Guess((9, 8), 1.0))


def hearing(fallback: Sequence[Source] = ()) -> tuple[Play, Hearing]:
    """A play whose budget chooser listens."""
    play = Play(fallback=fallback)
    play.speculator._budget = heard = Hearing()
    return play, heard


async def test_what_was_proposed_without_a_guess_says_nothing_about_the_candidates() -> None:
    """Neither a plain round nor one with n-grams: the draft did not say what it expects."""
    known, without = sequence(), sequence()
    play, heard = hearing((Known("ngram", {without.uid: (7, 8)}),))
    branches = BuildResult(((Branch(0, 6, Proposal((5,), guesses=GUESSES)),), ()))
    await play.round([known, without], [Verdict(0, 6), Verdict(0, 1)], branches)
    assert heard.ranks == [0]
    await play.round([known, without], [Verdict(1, 8), Verdict(0, 1)], BuildResult(((), ())))
    assert heard.accepted == [(1, 1)]
    assert heard.ranks == [0, 1]


async def test_the_bonus_behind_a_whole_proposal_is_ranked_by_what_the_draft_prepared_there() -> None:
    """It had not read the proposal's last token when it proposed, so it had no guess for that place."""
    for bonus, rank in ((9, 0), (8, 1), (7, None)):
        play, heard = hearing()
        one = sequence()
        first = prepared(Branch(0, 6, Proposal((5,), guesses=GUESSES[:1])))
        await play.round([one], [Verdict(0, 6)], first)
        heard.ranks.clear()
        behind = [Branch(0, 4, Proposal((1,))), Branch(1, 9, Proposal((2,))), Branch(1, 8, Proposal((3,)))]
        await play.round([one], [Verdict(1, bonus)], prepared(*behind))
        assert heard.ranks == [rank]


async def test_where_nothing_was_prepared_behind_a_whole_proposal_its_bonus_has_no_rank() -> None:
    """The draft may be stuck, or have spent its budget elsewhere: that says nothing of its candidates."""
    for branches in ((), (Branch(0, 4, Proposal((1,))),)):
        play, heard = hearing()
        one = sequence()
        await play.round([one], [Verdict(0, 6)], prepared(Branch(0, 6, Proposal((5,), guesses=GUESSES[:1]))))
        heard.ranks.clear()
        await play.round([one], [Verdict(1, 9)], prepared(*branches))
        assert heard.ranks == []


async def test_a_bonus_is_ranked_once() -> None:
    """By the guess where there is one, whatever was prepared."""
    play, heard = hearing()
    one = sequence()
    await play.round([one], [Verdict(0, 6)], prepared(Branch(0, 6, Proposal((5,), guesses=GUESSES))))
    heard.ranks.clear()
    await play.round([one], [Verdict(1, 8)], prepared(Branch(1, 8, Proposal((2,)))))
    assert heard.ranks == [1]


async def test_a_shadow_hears_of_every_committed_token_once() -> None:
    """Whatever happened in the round in which it was committed."""
    play, one = Play(), sequence()
    heard = list[int]()
    cache = play.memories.of(one.uid).cache
    assert cache is not None
    update = cache.update

    def noted(token_ids: Sequence[int]) -> None:
        heard.extend(token_ids)
        update(token_ids)

    cache.update = noted  # type: ignore[method-assign]
    for bonus in (9, 8, 7):
        await play.round([one], [Verdict(0, bonus)], prepared())
    play.speculator.branch(play.rows(one), await play.speculator.take(play.rows(one)))
    assert heard == one.token_ids


async def test_a_draft_out_of_service_leaves_the_target_all_cores() -> None:
    """Nothing is prepared, so the lanes do not work together."""
    play = Play()
    play.lane.is_alive = False
    assert not play.speculator.will_branch(play.rows(sequence()))
    await play.round([sequence()], [Verdict(0, 9)], prepared())
    assert play.lane.commands == []


def test_one_row_for_which_something_is_prepared_is_enough_to_share_the_cores() -> None:
    """Whatever the others want."""
    play = Play()
    assert play.speculator.will_branch(play.rows(sequence(SpeculationParams(enabled=False)), sequence()))


async def test_only_rounds_that_decode_and_emit_say_how_fast_a_mode_is() -> None:
    """One that reads a prompt beside takes longer for another reason, and one that fails emits nothing."""

    class Listening(FixedMode):
        def note_round(self, tokens: int, seconds: float) -> None:
            """Notes the tokens."""
            noted.append(tokens)

    play, noted = Play(), list[int]()
    play.speculator.modes = Modes(Listening(RowMode.AUTOREGRESSIVE), has_draft=True)
    reading = TokenSequence(Request("r"), 9, list(range(9)), Draw(0, 0.0), 50)
    last_chunk = TokenSequence(Request("r"), 9, list(range(9)), Draw(0, 0.0), 50, kv_len=5)
    chunks = (
        (BatchRow(reading, 4, 0, RowMode.AUTOREGRESSIVE, samples=False), None),
        (BatchRow(last_chunk, 4, 0, RowMode.AUTOREGRESSIVE), Verdict(0, 9)),
    )
    for beside, verdict in chunks:
        both = [*play.rows(sequence()), beside]
        build = play.speculator.branch(both, await play.speculator.take(both))
        await play.speculator.stage(build, [Verdict(0, 9), verdict])
    await play.round([sequence()], [Verdict(0, 9)], prepared())
    alone = play.rows(sequence())
    build = play.speculator.branch(alone, await play.speculator.take(alone))
    await play.speculator.stage(build, [RowFailure("its numbers are none")])
    assert noted == [1]


async def test_every_row_of_a_round_counts_for_its_mode() -> None:
    """Of those that sample."""
    play = Play()
    plain = sequence(SpeculationParams(enabled=False))
    await play.round([sequence(), plain, sequence()], [Verdict(0, 9)] * 3, BuildResult(((), ())))
    assert play.speculator.rounds_by_mode[RowMode.SSD] == 2
    assert play.speculator.rounds_by_mode[RowMode.AUTOREGRESSIVE] == 1


@pytest.mark.parametrize("apart", [True, False])
async def test_a_draft_with_a_place_of_its_own_reads_the_prompt_while_the_target_does(apart: bool) -> None:
    """In mode speculative; it prepares nothing, and later everybody waits for it."""
    play = Play(Mode.SPECULATIVE, reads_ahead=apart)
    whole = TokenSequence(Request("r"), 9, list(range(9)), Draw(0, 0.0), 50)
    for rows in ([BatchRow(whole, 9, 0, RowMode.SPECULATIVE)], play.rows(sequence())):
        assert play.speculator.will_branch(rows) is (apart and rows[0].sequence is whole)
        play.speculator.branch(rows, await play.speculator.take(rows))
    read = [(command.rows[0].uid, command.rows[0].budget) for command in play.lane.commands]
    assert read == ([(whole.uid, 0)] if apart else [])


async def test_a_prompt_in_chunks_is_read_by_the_draft_but_nothing_is_prepared() -> None:
    """There is no outcome before the prompt's last chunk."""
    play = Play()
    one = TokenSequence(Request("r"), 9, list(range(9)), Draw(0, 0.0), 50)
    rows = [BatchRow(one, 4, 0, RowMode.SSD, samples=False)]
    play.speculator.branch(rows, await play.speculator.take(rows))
    [command] = play.lane.commands
    assert isinstance(command, BuildCommand)
    assert command.rows[0].budget == 0
    assert command.rows[0].token_ids == tuple(range(9))


async def test_losing_branches_stay_readable_in_the_shadow() -> None:
    """What was prepared for another outcome is known to follow that text."""
    play, one = Play(), sequence()
    branches = (Branch(0, 9, Proposal((5,))), Branch(0, 8, Proposal((6, 7))))
    await play.round([one], [Verdict(0, 9)], prepared(*branches))
    await play.round([one], [Verdict(0, 8)], prepared())
    play.memories.of(one.uid).settle(one.token_ids)
    assert play.memories.recall(one.uid, 2)[:2] == [6, 7]


def test_a_proposal_that_is_cut_keeps_the_guess_behind_its_last_token() -> None:
    """And none further on: nobody will ask what follows tokens that were not sent."""
    guesses = tuple(Guess((token,), 1.0) for token in (7, 8, 9, 10))
    served = Proposal((7, 8, 9), guesses=guesses).served("somebody", 1, looked_up=True)
    assert (served.token_ids, served.guesses) == ((7,), guesses[:2])


def test_tokens_without_a_guess_have_a_likelihood_too() -> None:
    """A proposer's branches have no guesses; the shadow wants a number for each token."""
    sure, unsure = Guess((5,), 100.0), Guess((6,), 0.0)
    assert likelihoods(Branch(0, 1, Proposal((5, 6, 7)))) == [0.5] * 4
    assert likelihoods(Branch(0, 1, Proposal((5, 6), guesses=(sure, unsure, sure)))) == pytest.approx(
        [0.5, 1.0, 0.5]
    )


def test_without_a_shadow_to_ask_nothing_is_kept_for_it() -> None:
    """Its tree would grow with every round, between two passes."""
    memories = Memories(caching=False)
    memory = memories.of(1)
    memory.settle([1, 2, 3])
    memory.draft([Branch(0, 1, Proposal((5, 6, 7)))], ())
    assert memory.cache is None
    assert memories.recall(1, 4) == ()

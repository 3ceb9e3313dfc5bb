"""The budget that promises most tokens a round, from what was measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.speculation.budget import (
    CHOICE_ROUNDS,
    PRIOR_ACCEPTANCE,
    SMOOTHING,
    Average,
    BudgetChooser,
)
from ssd_runtime.speculation.commands import StepCost


def chooser(
    verify: float, steps: dict[int, float], ranks: list[int | None], most: int = 8, accepted: int = 3
) -> BudgetChooser:
    chosen = BudgetChooser(most, 4)
    chosen.note_verification(verify)
    chosen.note_steps(StepCost(paths, seconds) for paths, seconds in steps.items())
    for rank in ranks:
        chosen.note_acceptance(4, accepted)
        chosen.note_rank(rank)
    return chosen


def test_before_anything_is_measured_it_is_small() -> None:
    """Two outcomes, or what there may be at most."""
    assert BudgetChooser(8, 4).choose(1) == 2
    assert BudgetChooser(1, 4).choose(1) == 1
    assert BudgetChooser(0, 4).choose(1) == 0


def test_paths_that_cost_nothing_are_all_taken_where_they_cover_more() -> None:
    """Ranks up to the last one happen, and a pass takes the same for any number of paths."""
    free = dict.fromkeys(range(1, 9), 0.01)
    assert chooser(0.1, free, [0, 3, 7, 7, 7, 7, 7, 7]).choose(1) == 8


def test_a_bonus_that_is_always_the_first_candidate_needs_one_path() -> None:
    """More paths would only be slower."""
    dear = {paths: 0.01 * paths for paths in range(1, 9)}
    assert chooser(0.05, dear, [0] * 50).choose(1) == 1


def test_a_draft_that_is_too_slow_for_a_single_pass_prepares_as_little_as_possible() -> None:
    """Nothing is ready in time, whatever it covers."""
    slow = {paths: 0.03 + 0.0001 * paths for paths in range(1, 9)}
    assert chooser(0.01, slow, [0, 1, 2, 3, 4, 5, 6, 7]).choose(1) == 1


def test_fewer_paths_than_were_tried_are_expected_to_be_cheaper() -> None:
    """A large budget is left again, although nobody has measured a small one."""
    assert chooser(0.025, {8: 0.012}, [0] * 50).choose(1) == 1


def test_a_count_that_was_never_tried_costs_what_the_nearest_one_did() -> None:
    """Not what the smallest did: paths beyond a jump in the cost are not taken for cheap."""
    jump = {1: 0.01, 6: 10.0}
    assert chooser(0.1, jump, [0, 1, 2, 3, 4, 5, 6, 7]).choose(1) < 4


def test_more_rows_make_every_path_dearer() -> None:
    """The budget of a row never grows with the batch."""
    dear = {paths: 0.01 + 0.004 * paths for paths in (1, 2, 4, 8, 16, 32, 64)}
    budgets = [chooser(0.1, dear, [0, 1, 2, 3, 5, None] * 5).choose(rows) for rows in (1, 2, 4, 8)]
    assert budgets == sorted(budgets, reverse=True)
    assert budgets[0] > budgets[-1]


def test_the_more_is_accepted_the_more_the_depth_of_a_path_is_worth() -> None:
    """Many short paths where hardly a draft is right, fewer longer ones where all are."""
    dear = {paths: 0.01 + 0.008 * paths for paths in range(1, 65)}
    budgets = [
        chooser(0.1, dear, [0, 1, 2, 3, 5, None] * 5, accepted=accepted).choose(1) for accepted in (1, 4)
    ]
    assert budgets[0] > budgets[1]


def test_drafts_behind_the_first_wrong_one_were_not_tried() -> None:
    """One of four accepted: one of two that were tried. Without a proposal nothing was."""
    learning = BudgetChooser(8, 4)
    assert learning._acceptance() == PRIOR_ACCEPTANCE
    for proposed, accepted, rate in ((4, 1, 0.5), (4, 4, 1.0), (2, 0, 0.0)):
        learning = BudgetChooser(8, 4)
        learning.note_acceptance(0, 0)
        learning.note_acceptance(proposed, accepted)
        assert learning._acceptance() == rate


def test_a_choice_stands_for_some_rounds_and_then_follows_what_was_measured() -> None:
    """For each number of rows its own."""
    dear = {paths: 0.01 * paths for paths in range(1, 9)}
    learning = chooser(0.05, dear, [0] * 50)
    budgets = []
    for _ in range(CHOICE_ROUNDS):
        budgets.append(learning.choose(1))
        learning.note_acceptance(4, 3)
        learning.note_rank(7)
        learning.note_steps(StepCost(paths, 0.0) for paths in dear for _ in range(50))
        learning.note_verification(0.05)
    assert set(budgets[:-1]) == {1}
    assert learning.choose(1) > 1


@given(
    st.floats(0, 10),
    st.dictionaries(st.integers(1, 64), st.floats(0, 1), min_size=1),
    st.lists(st.one_of(st.none(), st.integers(0, 100)), max_size=20),
    st.integers(0, 16),
    st.integers(1, 16),
)
def test_it_is_always_within_its_bounds(
    verify: float, steps: dict[int, float], ranks: list[int | None], most: int, rows: int
) -> None:
    """Whatever the clock said, also nothing at all."""
    assert min(most, 1) <= chooser(verify, steps, ranks, most).choose(rows) <= most


def test_an_average_begins_with_its_first_value_and_follows() -> None:
    """It does not begin at zero."""
    assert Average().value is None
    average = Average()
    average.add(10.0)
    assert average.value == 10.0
    average.add(20.0)
    assert average.value == pytest.approx(10 + 10 * SMOOTHING)

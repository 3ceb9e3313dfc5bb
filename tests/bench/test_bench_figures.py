"""The columns' definitions, on runs whose every time is known."""

from __future__ import annotations

import pytest

from ssd_runtime.bench.answering import Streamed
from ssd_runtime.bench.figures import (
    busy_seconds,
    decode_seconds,
    decoded_tokens,
    draft_pass_seconds,
    first_token_seconds,
    gap_seconds,
    merged,
    percentile,
    python_seconds,
    span_seconds,
)
from ssd_runtime.device.lane import CommandRecord

FIRST = Streamed("a", (1, 2, 3, 4, 5, 6), 1.0, ((2.0, 1), (2.5, 3), (4.0, 2)))
SECOND = Streamed("b", (1, 2), 1.0, ((3.5, 1), (5.0, 1)))
LATER = Streamed("c", (1, 2, 3), 9.0, ((10.0, 2), (11.0, 1)))
SILENT = Streamed("d", (), 0.0, ())


def verify(started: float, finished: float) -> CommandRecord:
    return CommandRecord("target", "verify", 1, 1, started, finished)


def build(started: float, finished: float, passes: int = 1) -> CommandRecord:
    return CommandRecord("draft", "build", 1, 1, started, finished, passes)


def test_what_comes_with_the_first_piece_is_not_decoded() -> None:
    """It belongs to the wait for the first token, however many tokens it has."""
    assert decoded_tokens([FIRST, SECOND, LATER, SILENT]) == 5 + 1 + 1


def test_time_in_which_several_answers_grow_counts_once() -> None:
    """2.0 to 5.0 by two answers, 10.0 to 11.0 by one."""
    assert decode_seconds([FIRST, SECOND, LATER, SILENT]) == 4.0


def test_first_token_counts_from_submission() -> None:
    """An answer without a token has none."""
    assert first_token_seconds([FIRST, SECOND, SILENT]) == [1.0, 2.5]


def test_gaps_are_what_a_reader_waits() -> None:
    """From piece to piece, not shared out among the tokens of one."""
    assert gap_seconds([FIRST, SECOND, SILENT]) == [0.5, 1.5, 1.5]


def test_a_lane_is_busy_while_its_commands_run() -> None:
    """Each lane by itself, within the span of all."""
    commands = [verify(1.0, 2.0), build(1.5, 3.0), verify(4.0, 4.5)]
    assert busy_seconds(commands) == {"target": 1.5, "draft": 1.5}
    assert span_seconds(commands) == 3.5
    assert span_seconds([]) == 0.0


def test_python_has_the_time_in_which_no_lane_works() -> None:
    """Waiting for a draft pass in hand is the draft's time; the last verification has no next one."""
    commands = [verify(0.0, 1.0), build(0.0, 1.25), verify(1.5, 2.0), verify(2.0, 3.0), verify(3.5, 4.0)]
    assert python_seconds(commands) == [0.25, 0.0, 0.5]


def test_drafting_between_two_verifications_is_not_python() -> None:
    """Mode speculative: hand-over to the draft and hand-over back both count, its passes do not."""
    draft = CommandRecord("draft", "draft", 1, 4, 1.25, 2.0)
    assert python_seconds([verify(0.0, 1.0), draft, verify(2.5, 3.0)]) == [0.75]


def test_time_before_the_first_verification_belongs_to_no_round() -> None:
    """A build that is still ending when the next block begins, for example."""
    assert python_seconds([build(0.0, 1.0), verify(2.0, 3.0), verify(3.5, 4.0)]) == [0.5]


def test_a_draft_pass_is_a_builds_time_by_its_passes() -> None:
    """Builds that were stopped before a pass say nothing, nor do other commands."""
    commands = [build(0.0, 1.0, 4), build(1.0, 1.5, 0), build(2.0, 3.0, 2), verify(0.0, 9.0)]
    assert draft_pass_seconds(commands) == [0.25, 0.5]


def test_intervals_that_touch_are_one() -> None:
    """In any order, also one inside another."""
    assert merged([(3.0, 4.0), (0.0, 2.0), (1.0, 1.5), (2.0, 3.0), (5.0, 6.0)]) == [(0.0, 4.0), (5.0, 6.0)]


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 1.0), (50, 3.0), (75, 4.0), (99, 4.96), (100, 5.0), (10, 1.4)]
)
def test_percentiles_are_interpolated(percent: float, expected: float) -> None:
    """As numpy's and vLLM's are."""
    assert percentile([5.0, 1.0, 4.0, 2.0, 3.0], percent) == pytest.approx(expected)


def test_no_values_have_no_percentile() -> None:
    """None, never a number that was not measured; one value is every percentile."""
    assert percentile([], 50) is None
    assert percentile([7.0], 99) == 7.0

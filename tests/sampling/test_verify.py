"""Accept exactly where equal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssd_runtime.messages import Verdict
from ssd_runtime.sampling.verify import verify

tokens = st.lists(st.integers(0, 3), max_size=8)


@pytest.mark.parametrize(
    ("drafts", "targets", "verdict"),
    [
        ([], [5], Verdict(0, 5)),
        ([5, 6], [5, 6, 7], Verdict(2, 7)),
        ([5, 6], [5, 8, 7], Verdict(1, 8)),
        ([5, 6], [4, 6, 7], Verdict(0, 4)),
        ([5, 6], [-1, 6, 7], Verdict(0, -1)),
        ([-1, 6], [-1, 6, 7], Verdict(0, -1)),
    ],
)
def test_known_verdicts(drafts: list[int], targets: list[int], verdict: Verdict) -> None:
    """The leading equal tokens are accepted; the target's next token is the bonus."""
    assert verify(drafts, targets) == verdict


@given(tokens, st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_what_is_emitted_is_the_targets_own_text(drafts: list[int], targets: list[int]) -> None:
    """Accepted drafts and bonus together are a prefix of the target's tokens, whatever the drafts."""
    verdict = verify(drafts, targets)
    emitted = [*drafts[: verdict.accepted], verdict.bonus]
    assert emitted == targets[: len(emitted)]


def test_targets_are_drawn_only_up_to_the_first_difference() -> None:
    """Nothing is computed that no verdict needs."""
    asked = []

    def target() -> Iterator[int]:
        for token in (1, 9, 3):
            asked.append(token)
            yield token

    assert verify([1, 2], target()) == Verdict(1, 9)
    assert asked == [1, 9]

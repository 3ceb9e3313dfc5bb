"""Lanes that share cores divide them while both work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ssd_runtime.device import threads
from ssd_runtime.device.threads import ShareCores, shares


@dataclass(frozen=True)
class Command:
    """Says only whether the other lane works too."""

    together: bool


class Recorder:
    """A worker that notes how many threads it was given."""

    def __init__(self, given: list[int]) -> None:
        self.given = given
        self.seen: list[int] = []

    def execute(self, command: Any) -> int:
        """The number of threads at this moment."""
        self.seen.append(self.given[-1])
        return self.given[-1]


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        ({0, 1}, {0, 1}, (1, 1)),
        ({0, 1, 2}, {0, 1, 2}, (2, 1)),
        ({0, 1}, {1}, (2, 1)),
        ({0}, {0}, (1, 1)),
        ({0, 1}, {2, 3, 4}, (2, 3)),
    ],
)
def test_shared_cores_are_split_and_nobody_gets_none(
    target: set[int], draft: set[int], expected: tuple[int, int]
) -> None:
    """Cores of one lane alone stay its own; of the shared ones each gets a half."""
    assert shares(frozenset(target), frozenset(draft)) == expected


def test_a_command_gets_its_share_only_while_the_other_lane_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads change with the commands, and only when they must."""
    given = [4]
    monkeypatch.setattr(threads, "use_threads", given.append)
    recorder = Recorder(given)
    worker = ShareCores(recorder, alone=4, together=2)
    for together in (False, True, True, False):
        worker.execute(Command(together))
    assert recorder.seen == [4, 2, 2, 4]
    assert given == [4, 2, 4]

"""The checker: silent on honest runs, loud on every kind of lie."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.telemetry.trace import TraceWriter

SCRIPT = Path(__file__).parents[2] / "scripts" / "check_trace.py"
VERIFIES = [CommandRecord("target", "verify", 2, 9, start, start + 1.0) for start in (0.0, 1.0, 2.5)]
BUILDS = [CommandRecord("draft", "build", 2, 8, start, start + 1.0) for start in (0.5, 1.5)]
ROUNDS = [
    RoundRecord("a", "none", True, 0, 0, 1),
    RoundRecord("b", "cache", True, 4, 4, 5),
    RoundRecord("a", "ngram", True, 3, 1, 2),
    RoundRecord("b", "cache", True, 4, 1, 2),
]
ANSWERS: list[dict[str, Any]] = [
    {
        "id": "a",
        "usage": {"completion_tokens": 3},
        "speculation": {
            "mode": "ssd",
            "rounds": 2,
            "hits": 0,
            "misses": 2,
            "draft_tokens": 3,
            "accepted_tokens": 1,
            "accepted_per_position": [1],
        },
    },
    {
        "id": "b",
        "usage": {"completion_tokens": 7},
        "speculation": {
            "mode": "ssd",
            "rounds": 2,
            "hits": 2,
            "misses": 0,
            "draft_tokens": 8,
            "accepted_tokens": 5,
            "accepted_per_position": [2, 1, 1, 1],
        },
    },
    {"id": "c", "error": {"type": "invalid_request_error", "message": "no", "param": None}},
]


def check(
    folder: Path,
    commands: Sequence[CommandRecord],
    rounds: Sequence[RoundRecord],
    answers: Sequence[dict[str, Any]] = (),
    *options: str,
) -> subprocess.CompletedProcess[str]:
    """The script's run on a trace of these records."""
    with TraceWriter(folder / "t.json", ManualClock()) as writer:
        for command in commands:
            writer.command(command)
        for record in rounds:
            writer.round(record)
    (folder / "answers.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    arguments = [str(folder / "t.json"), "--answers", str(folder / "answers.jsonl"), *options]
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)


def test_honest_run_passes_and_prints_its_sums(tmp_path: Path) -> None:
    """Totals per request and over all, lane shares and the overlap of builds and verifications."""
    done = check(tmp_path, [*VERIFIES, *BUILDS], ROUNDS, ANSWERS)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "total: rounds 4, hits 2, misses 2, draft tokens 11, accepted 6 [3, 1, 1, 1], "
        "acceptance 0.545, tokens a round 2.500, hit rate 0.500",
        "a: rounds 2, hits 0, misses 2, draft tokens 3, accepted 1 [1], "
        "acceptance 0.333, tokens a round 1.500, hit rate 0.000",
        "b: rounds 2, hits 2, misses 0, draft tokens 8, accepted 5 [2, 1, 1, 1], "
        "acceptance 0.625, tokens a round 3.500, hit rate 1.000",
        "lane target: 3 commands, busy 0.857, idle 0.143",
        "lane draft: 2 commands, busy 0.571, idle 0.429",
        "builds inside target commands: 0.750",
    ]


@pytest.mark.parametrize(
    "name", ["rounds", "hits", "misses", "draft_tokens", "accepted_tokens", "accepted_per_position"]
)
def test_wrong_count_in_an_answer_is_named(tmp_path: Path, name: str) -> None:
    """Each statistic of an answer is compared with the sum over the trace."""
    said = dict(ANSWERS[0]["speculation"])
    said[name] = [1, 1] if name == "accepted_per_position" else said[name] + 1
    done = check(tmp_path, [*VERIFIES, *BUILDS], ROUNDS, [{**ANSWERS[0], "speculation": said}])
    assert done.returncode == 1
    assert f"answer 'a': {name} is" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_missing_token_is_named(tmp_path: Path) -> None:
    """An answer's tokens are the tokens that its rounds emitted."""
    answer = {**ANSWERS[0], "usage": {"completion_tokens": 4}}
    done = check(tmp_path, [*VERIFIES, *BUILDS], ROUNDS, [answer])
    assert done.returncode == 1
    assert "answer 'a': 4 tokens, the trace says 3" in done.stderr


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        (RoundRecord("a", "cache", True, 2, 3, 4), "3 of 2 accepted"),
        (RoundRecord("a", "cache", True, 4, 3, 5), "5 emitted, 3 accepted"),
        (RoundRecord("a", "cache", True, 4, 3, 2), "2 emitted, 3 accepted"),
    ],
)
def test_impossible_verdict_is_named(tmp_path: Path, lie: RoundRecord, message: str) -> None:
    """More accepted than proposed, or more emitted than accepted and a bonus, cannot be."""
    done = check(tmp_path, VERIFIES, [lie])
    assert done.returncode == 1
    assert message in done.stderr


def test_lane_that_does_two_things_at_once_is_named(tmp_path: Path) -> None:
    """Commands of one lane never overlap; touching is fine, other lanes are not compared."""
    done = check(tmp_path, [*VERIFIES, replace(VERIFIES[0], started=0.5, finished=0.75)], [])
    assert done.returncode == 1
    assert "lane 'target'" in done.stderr


@pytest.mark.parametrize(
    ("mode", "commands", "rounds", "message"),
    [
        ("autoregressive", [*VERIFIES, *BUILDS], [], "something was drafted"),
        ("autoregressive", VERIFIES, ROUNDS[1:2], "something was drafted"),
        ("speculative", VERIFIES, ROUNDS[:1], "looked into the outcome cache"),
        ("speculative", [*VERIFIES, *BUILDS], [], "branches were built"),
        ("ssd", VERIFIES, ROUNDS, "no build ran while the target verified"),
        ("ssd", [VERIFIES[0], replace(BUILDS[0], started=1.0, finished=2.0)], ROUNDS, "no build ran"),
    ],
)
def test_mode_must_be_what_it_says(
    tmp_path: Path, mode: str, commands: list[CommandRecord], rounds: list[RoundRecord], message: str
) -> None:
    """Plain drafts nothing, speculative looks nothing up, ssd drafts while the target verifies."""
    done = check(tmp_path, commands, rounds, [], "--mode", mode)
    assert done.returncode == 1
    assert message in done.stderr


def test_plain_and_speculative_runs_pass(tmp_path: Path) -> None:
    """A run without drafts, and one whose drafts run between verifications."""
    drafts = [replace(BUILDS[0], kind="draft", started=2.0, finished=2.5)]
    plain = [RoundRecord("a", "none", False, 0, 0, 1)]
    drafted = [RoundRecord("a", "draft", False, 4, 2, 3)]
    assert check(tmp_path, VERIFIES, plain, [], "--mode", "autoregressive").returncode == 0
    assert check(tmp_path, [*VERIFIES, *drafts], drafted, [], "--mode", "speculative").returncode == 0

"""The mutation run: what is changed, what is left alone, and what becomes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.exchange import loaded, mutate
from scripts.mutations import mutations
from scripts.wrong_rules import RULES, WrongRule

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A module."""

LIMIT = 3


class Counter:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, number: int, times: int = 1) -> int:
        """Numbers below the limit count."""
        if number < LIMIT and times:
            self.count += number * times
        return self.count


def tripled(counts: list[int]) -> list[int]:
    """Three times the first ones."""
    assert counts, f"nothing in {counts}"
    if len(counts) > 9:
        raise ValueError("too many")
    return [3 * count for count in counts[:2]]
'''
TESTS = """
from counting import Counter, tripled

def test_numbers_below_the_limit_count():
    counter = Counter()
    assert [counter.add(number) for number in (1, 2, 3)] == [1, 3, 3]

def test_the_first_ones_are_tripled():
    assert tripled([1, 2, 5]) == [3, 6]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "counting.py"
    file.write_text(SOURCE, encoding="utf-8")
    return file


def changes(path: Path) -> set[tuple[tuple[str, ...], str, str]]:
    return {(each.functions, each.before, each.after) for each in mutations(path)}


def test_code_and_constants_are_changed_one_thing_at_a_time(path: Path) -> None:
    """Comparisons, operators, conditions, numbers, defaults, slices, results, whole statements."""
    assert {
        ((), "3", "4"),
        (("Counter.add",), "1", "2"),
        (("Counter.add",), "number < LIMIT", "number <= LIMIT"),
        (("Counter.add",), "number < LIMIT and times", "number < LIMIT or times"),
        (("Counter.add",), "number * times", "number / times"),
        (("Counter.add",), "self.count += number * times", "self.count -= number * times"),
        (("Counter.add",), "return self.count", "return None"),
        (("tripled",), "len(counts) > 9", "len(counts) >= 9"),
        (("tripled",), ":2", ":"),
        (("tripled",), "raise ValueError('too many')", "pass"),
    } <= changes(path)


def test_words_for_people_are_left_alone(path: Path) -> None:
    """Docstrings, assertions, the texts of errors; and every change is a module that compiles."""
    for mutation in mutations(path):
        compile(mutation.source, str(path), "exec")
        assert "too many" in mutation.source or mutation.before.startswith("raise")
        assert 'f"nothing in {counts}"' in mutation.source
        assert "assert counts" in mutation.source


def test_a_mutation_is_in_force_in_code_that_was_imported_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function's code, its defaults, and a constant."""
    monkeypatch.syspath_prepend(path.parent)
    monkeypatch.chdir(path.parent)
    from counting import Counter  # type: ignore[import-not-found]  # written by this test

    there = loaded()

    def with_(function: str, before: str, after: str) -> int:
        wanted = ((function,) if function else (), before, after)
        mutate(next(m for m in mutations(path) if (m.functions, m.before, m.after) == wanted), there)
        counted: int = Counter().add(3)
        return counted

    assert Counter().add(3) == 0
    assert with_("", "3", "4") == 3
    assert with_("Counter.add", "1", "2") == 6
    assert with_("Counter.add", "number < LIMIT", "number >= LIMIT") == 0
    del sys.modules["counting"]


def test_what_no_test_notices_is_listed(path: Path) -> None:
    """Times is 1 throughout, nine numbers are never tried; the rest is noticed."""
    (path.parent / "test_counting.py").write_text(TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "scripts.mutants", ".", "--tests", "test_counting.py"]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{path.parent}"}
    done = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [log] = (path.parent / "build" / "mutants").glob("*.log")
    rows = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    survived = {change.split(": ", 1)[1] for fate, change, _ in rows if fate == "survived"}
    assert {"number * times → number / times", "len(counts) > 9 → len(counts) >= 9"} <= survived
    assert not any("LIMIT →" in change for change in survived)
    assert " left (" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_wrong_rule_still_fits_the_code_and_is_told(
    rule: WrongRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it changes is where it says, in functions of that name; docs/mutations.md has a row for it."""
    monkeypatch.chdir(ROOT)
    mutation = rule.mutation()
    assert mutation.source != mutation.path.read_text(encoding="utf-8")
    for name in mutation.functions:
        assert f"def {name.rpartition('.')[2]}(" in mutation.source
    assert f"| {rule.name} | " in (ROOT / "docs" / "mutations.md").read_text(encoding="utf-8")

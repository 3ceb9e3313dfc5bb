"""docs/cases.md: every test that it names is there, and runs without being asked for."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    line.split("|")[1:-1]
    for line in (ROOT / "docs" / "cases.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| [BR]\d", line)
]


def counted() -> Counter[str]:
    """The names of all test functions, and how often each is used."""
    found: Counter[str] = Counter()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[node.name] += 1
    return found


def test_every_case_is_told_once_and_held_by_tests_that_exist() -> None:
    """By a name that no other test has."""
    known = counted()
    cases = [row[0].strip() for row in ROWS]
    assert cases == sorted(set(cases))
    for case, what, named in ROWS:
        names = re.findall(r"`(test_\w+)`", named)
        assert what.strip(), case
        assert names, case
        assert all(known[name] == 1 for name in names), (case, names)

"""Faults that engines of this kind have had, put into the code one at a time: which test turns red?

    python -m scripts.wrong_rules --tests tests/sampling tests/speculation tests/oracle tests/engine

As `scripts/mutants.py`, with faults that somebody thought of instead of small ones. Prints a row for each
with the test that noticed it first; exits with 1 where none did.
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.mutants import HUNG, KILLED, PYTEST, QUICK, Mutants
from scripts.mutations import Mutation

CHANCE = "ssd_runtime/sampling/chance.py"
RATIO = "ssd_runtime/sampling/ratio.py"
VERDICTS = "ssd_runtime/engine/verdicts.py"
DRAFTING = "ssd_runtime/speculation/drafting.py"
SPECULATOR = "ssd_runtime/speculation/speculator.py"
GREEDY = '__import__("dataclasses").replace({}, temperature=0.0)'


@dataclass(frozen=True, slots=True)
class WrongRule:
    """What is wrong, in which file and functions, and what to put in place of what, each found once."""

    name: str
    path: str
    functions: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]

    def mutation(self) -> Mutation:
        """As a mutation. Raises ValueError where the code to change is not there."""
        source = text = Path(self.path).read_text(encoding="utf-8")
        for before, after in self.changes:
            if source.count(before) != 1:
                raise ValueError(
                    f"{self.name}: {self.path} has {before!r} {source.count(before)} times, not once"
                )
            text = text.replace(before, after)
        first = min(source[: source.index(before)].count("\n") + 1 for before, _ in self.changes)
        last = max(source[: source.index(before)].count("\n") + 1 for before, _ in self.changes)
        ast.parse(text)
        return Mutation(Path(self.path), self.functions, (first, 0), (first, last), "right", self.name, text)


RULES = (
    WrongRule(
        "The draft draws its token with the number that decides about it: noise shared under the ratio rule",
        CHANCE,
        ("draft_by_chance",),
        (
            (
                "streams.proposal_word(draw.seed, draw.line, position)",
                "streams.position_word(draw.seed, streams.ACCEPT_STREAM, position)",
            ),
        ),
    ),
    WrongRule(
        "The draft draws its token with the target's own number",
        CHANCE,
        ("draft_by_chance",),
        (
            (
                "streams.proposal_word(draw.seed, draw.line, position)",
                "streams.position_word(draw.seed, streams.BONUS_STREAM, position)",
            ),
        ),
    ),
    WrongRule(
        "One number decides about a draft and draws the token in its place",
        RATIO,
        ("verify_by_ratio",),
        (("words(RESIDUAL_STREAM, position)", "words(ACCEPT_STREAM, position)"),),
    ),
    WrongRule(
        "A draft is drawn as if there were no grammar, and cut at a token that the grammar forbids",
        DRAFTING,
        ("DraftWorker._drafted",),
        (
            (
                "logits = self._ruled(self._extended(feeds, stop)[:, : self._vocab_size], lines, feeds)",
                "logits = self._extended(feeds, stop)[:, : self._vocab_size]\n"
                "        ruled = self._ruled(logits, lines, feeds)",
            ),
            (
                "return self._sampler.draft(logits, draws, positions, self._num_candidates)",
                "steps = self._sampler.draft(logits, draws, positions, self._num_candidates)\n"
                "        ends = [s.token >= 0 and row[s.token].isneginf() for s, row in zip(steps, ruled)]\n"
                "        return [DraftStep(-1, (), ()) if end else s for s, end in zip(steps, ends)]",
            ),
        ),
    ),
    WrongRule(
        "A draft of probability 0 is accepted: `<=` for `<`",
        RATIO,
        ("accepts",),
        (("return uniform * q < p", "return uniform * q <= p"),),
    ),
    WrongRule(
        "Drafts of a miss are accepted where they are the target's likeliest token",
        CHANCE,
        ("verify_by_chance",),
        (
            (
                "odds_of(row[0], draw) for row in logits",
                "odds_of(row[0], draw if drawn_from or not drafts else "
                f"{GREEDY.format('draw')}) for row in logits",
            ),
        ),
    ),
    WrongRule(
        "Drafts are accepted where they are the target's likeliest token, whatever the temperature",
        VERDICTS,
        ("Judge._judged",),
        (
            (
                "self._sampler.draw(one, [row.draw], [first + i])",
                "self._sampler.draw(one, [row.draw if i == len(row.drafts) else "
                f"{GREEDY.format('row.draw')}], [first + i])",
            ),
        ),
    ),
    WrongRule(
        "The noise of a draft's token is that of the next position",
        DRAFTING,
        ("DraftWorker._step",),
        (
            (
                "feed.state.length + len(feed.token_ids) - i,",
                "feed.state.length + len(feed.token_ids) - i + 1,",
            ),
        ),
    ),
    WrongRule(
        "The noise of the target's second token of a round is that of the next position",
        VERDICTS,
        ("Judge._judged",),
        (("[first + i])[0]", "[first + i + (i > 0)])[0]"),),
    ),
    WrongRule(
        "From its second draft on a proposal is decided about with the number of the position before",
        RATIO,
        ("verify_by_ratio",),
        (("words(ACCEPT_STREAM, position)", "words(ACCEPT_STREAM, position - (accepted > 0))"),),
    ),
    WrongRule(
        "What was prepared is looked up without the epoch",
        SPECULATOR,
        ("Speculator._look_up", "Speculator._file"),
        (
            ("sequence.epoch, memory.length", "0, memory.length"),
            ("sequence.epoch, row.length", "0, row.length"),
        ),
    ),
)


def tried(rules: Sequence[WrongRule], tests: Sequence[str], kept: Path, budget: float) -> dict[str, str]:
    """The test that noticed each rule, by the rule's mutation; those that none did are missing.

    kept: folder for what is known of the tests.
    """
    kept.mkdir(parents=True, exist_ok=True)
    files, log = [Path(path) for path in sorted({rule.path for rule in rules})], kept / "rules.log"
    log.unlink(missing_ok=True)
    plugin = Mutants(
        [rule.mutation() for rule in rules], files, kept / "rules.jsonl", log, budget, os.cpu_count() or 1
    )
    pytest.main([*PYTEST, *QUICK, *tests], plugins=[plugin])
    rows = [line.split("\t") for line in log.read_text(encoding="utf-8").splitlines()]
    return {name: test for fate, name, test in rows if fate in (KILLED, HUNG)}


def main() -> None:
    """Try every rule, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", nargs="+", default=["tests"])
    parser.add_argument("--budget", type=float, default=120.0, help="most seconds of tests for a rule")
    parser.add_argument("--kept", type=Path, default=Path("build/mutants"), help="see scripts/mutants.py")
    options = parser.parse_args()
    found = tried(RULES, options.tests, options.kept, options.budget)
    for rule in RULES:
        test = found.get(str(rule.mutation()))
        sys.stdout.write(f"| {rule.name} | {f'`{test}`' if test else 'nobody notices'} |\n")
    raise SystemExit(len(found) < len(RULES))


if __name__ == "__main__":
    main()

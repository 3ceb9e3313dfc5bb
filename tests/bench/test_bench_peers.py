"""The comparison with other engines, on peers whose rates are known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts.bench_peers import Rates, measure, present, ratio, table
from scripts.peers import LlamaBench, LlamaCppPython, MissingPeerError, Ours, Work, slope
from ssd_runtime.bench.prompts import Prompt
from ssd_runtime.errors import SSDError

WORKS = [Work(Prompt(str(i), "why?"), tuple(range(i)), 16, 272) for i in range(4)]
PIPE = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    count = asked["max_tokens"] - (asked["prompt"] == "short")
    answer = {"error": {"message": "no"}} if asked["prompt"] == "wrong" else {"token_ids": [1] * count}
    print(json.dumps(answer | {"prompt_token_ids": [7, 8, 9]}), flush=True)
"""
TOOL = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
if options["-m"] == "none.gguf":
    sys.exit("no such model")
print(json.dumps([{{"avg_ts": int(options["-n"]) + int(options["-d"]) / 1000}}]))
"""


class Known:
    """A peer of known rates that notes whom it was asked about."""

    def __init__(self, name: str, factor: float, journal: list[str]) -> None:
        self.name = name
        self._factor = factor
        self._journal = journal

    def rate(self, work: Work) -> float:
        self._journal.append(self.name)
        return self._factor * (10 + len(work.prompt_ids))

    def close(self) -> None: ...


def test_a_rate_is_a_slope_so_that_what_comes_before_decoding_does_not_count() -> None:
    """Five seconds of prefill, then 50 tokens a second."""
    assert slope(lambda count: 5.0 + count / 50, 16, 272) == pytest.approx(50.0)


def test_peers_take_turns_and_every_other_prompt_runs_backwards() -> None:
    """A B B A A B B A; a line after each prompt says how far it is."""
    journal: list[str] = []
    told: list[str] = []
    rates = measure([Known("A", 2.0, journal), Known("B", 1.0, journal)], WORKS, told.append)
    assert "".join(journal) == "ABBAABBA"
    assert rates == {"A": [20.0, 22.0, 24.0, 26.0], "B": [10.0, 11.0, 12.0, 13.0]}
    assert told[0] == "1 of 4, 0: A 20.0, B 10.0"


def test_ratios_are_taken_prompt_by_prompt() -> None:
    """However different the prompts are, a constant ratio has an interval without width."""
    rates: Rates = {"ours": [20.0, 200.0, 2.0], "theirs": [10.0, 100.0, 1.0]}
    found = ratio(rates, "ours", "theirs")
    assert (found.median, found.low, found.high) == (2.0, 2.0, 2.0)


def test_an_interval_holds_the_median_and_is_the_same_every_time() -> None:
    """The resampling has a fixed seed; one prompt alone gives no interval."""
    rates: Rates = {"ours": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], "theirs": [1.0] * 7}
    found = ratio(rates, "ours", "theirs")
    assert found == ratio(rates, "ours", "theirs")
    assert found.low is not None
    assert found.high is not None
    assert 1.0 <= found.low < found.median == 4.0 < found.high <= 7.0
    one = ratio({"ours": [3.0], "theirs": [2.0]}, "ours", "theirs")
    assert (one.median, one.low, one.high) == (1.5, None, None)


def test_the_table_has_every_contender_and_ratios_to_the_others() -> None:
    """Ours are not divided by ours."""
    text = table({"ours": [30.0], "x": [10.0]}, ["ours"])
    assert text.splitlines()[2:] == ["| ours | 30.0 |  |", "| x | 10.0 | 3.00 |"]


def test_a_peer_that_is_missing_is_skipped_with_a_line(tmp_path: Path) -> None:
    """The others are compared all the same."""
    told: list[str] = []
    known = Known("here", 1.0, [])
    found = present(
        {"here": lambda: known, "tool": lambda: LlamaBench(tmp_path / "none", tmp_path, 2)}, told.append
    )
    assert found == [known]
    assert told == [f"tool: skipped, no such file: {tmp_path / 'none'}"]


def test_llama_cpp_without_its_package_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never installed by us."""
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(MissingPeerError, match="no llama-cpp-python here, and no --llama-bench PATH"):
        LlamaCppPython(Path("m.gguf"), 2)


def test_llama_bench_is_run_for_as_many_tokens_after_as_many(tmp_path: Path) -> None:
    """256 tokens after the prompt and the 16 that the others do not count; a failure shows what it said."""
    tool = tmp_path / "llama-bench"
    tool.write_text(TOOL.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    assert LlamaBench(tool, Path("m.gguf"), 2).rate(WORKS[3]) == pytest.approx(256 + 0.019)
    with pytest.raises(SSDError, match=r"status 1, .*it said: no such model"):
        LlamaBench(tool, Path("none.gguf"), 2).rate(WORKS[3])


class TestOurs:
    def ours(self) -> Ours:
        times = iter(range(1000))
        return Ours("ssd", pipe=[sys.executable, "-c", PIPE], clock=lambda: next(times) ** 2)

    def test_the_time_is_from_a_line_to_its_answer(self) -> None:
        """A clock that reads 0, 1, 4, 9: the long answer took 1 second, the short one 5."""
        ours = self.ours()
        assert ours.name == "ours, ssd"
        assert ours.prompt_ids(Prompt("a", "why?")) == (7, 8, 9)
        assert ours.rate(WORKS[0]) == 256 / (1 - 5)
        ours.close()

    @pytest.mark.parametrize(
        ("text", "message"),
        [("wrong", "ours, ssd, prompt 'a': .*no"), ("short", "got 271 tokens, expected 272")],
    )
    def test_an_answer_that_is_none_is_an_error(self, text: str, message: str) -> None:
        """Its time would be worth nothing."""
        ours = self.ours()
        with pytest.raises(SSDError, match=message):
            ours.rate(Work(Prompt("a", text), (), 16, 272))
        ours.close()

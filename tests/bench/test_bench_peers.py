"""The comparison with other engines, on peers whose rates are known."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from scripts.bench_peers import (
    Rates,
    llama,
    measure,
    overrides_of,
    present,
    ratio,
    table,
    transformers,
    works_of,
)
from scripts.peers import LlamaBatchedBench, LlamaBench, LlamaCppPython, MissingPeerError, Ours, Work
from ssd_runtime.bench.prompts import Prompt
from ssd_runtime.errors import SSDError
from ssd_runtime.types import Mode

WORKS = [Work((Prompt(str(i), "why?"),), (tuple(range(i)),), 16, 272) for i in range(4)]
PAIR = Work((Prompt("a", "why?"), Prompt("b", "why?")), ((1,) * 10, (1,) * 20), 16, 272)
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
BATCHED_TOOL = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert options["--output-format"] == "jsonl"
sizes = {{name: int(options[name]) for name in ("-npl", "-npp", "-ntg", "-c")}}
print("llama_model_loader: loaded")
print(json.dumps({{"speed_tg": sizes["-npl"] * 10 + (sizes["-c"] == 2 * (31 + 256))}}))
print("llama_perf: done")
"""
LLAMA_CPP = """
class Llama:
    def __init__(self, path, **options):
        self.made, self.resets = 0, 0
    def reset(self):
        self.resets += 1
    def close(self):
        self.closed = True
    def generate(self, token_ids, temp):
        assert token_ids == [0, 1] and temp == 0.0
        while True:
            self.made += 1
            yield 7
"""


class Known:
    """A peer of known rates that notes whom it was asked about."""

    def __init__(self, name: str, factor: float, journal: list[str]) -> None:
        self.name = name
        self._factor = factor
        self._journal = journal

    def rate(self, work: Work) -> float:
        self._journal.append(self.name)
        return self._factor * (10 + len(work.prompt_ids[0]))

    def close(self) -> None: ...


def test_a_rate_is_a_slope_so_that_what_comes_before_decoding_does_not_count() -> None:
    """Five seconds of prefill, then 50 tokens a second."""
    assert WORKS[0].slope(lambda count: 5.0 + count / 50) == pytest.approx(50.0)


def test_the_rate_of_prompts_that_are_answered_at_once_is_that_of_all_together() -> None:
    """Two prompts, 50 tokens a second each; what stands before is the mean prompt and the first tokens."""
    assert PAIR.slope(lambda count: 5.0 + count / 50) == pytest.approx(100.0)
    assert PAIR.depth == 15 + 16


def test_prompts_are_grouped_and_what_is_left_over_is_left_out() -> None:
    """A batch that is not full would be another measurement."""
    prompts = [Prompt(str(i), "why?") for i in range(5)]
    options = Namespace(batch=2, tokens=[16, 272])
    works = works_of(prompts, [(i,) for i in range(5)], options)
    assert [[prompt.id for prompt in work.prompts] for work in works] == [["0", "1"], ["2", "3"]]
    assert works[1].prompt_ids == ((2,), (3,))


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
    """Also of our modes to each other; nobody to itself."""
    text = table({"a": [30.0], "b": [15.0], "x": [10.0]}, ["a", "b"])
    assert text.splitlines()[2:] == [
        "| a | 30.0 |  | 0.50 |",
        "| b | 15.0 | 2.00 |  |",
        "| x | 10.0 | 3.00 | 1.50 |",
    ]


def test_device_for_device_places_the_draft_of_a_mode_whose_roles_take_turns_beside_the_target() -> None:
    """As `ssd-run bench` does; only ssd adds the draft's own core."""
    asked = ["placement.target=cpu:0", "placement.draft=cpu:1"]
    options = Namespace(device_for_device=True)
    assert overrides_of(options, asked, Mode.SPECULATIVE) == [*asked, "placement.draft=cpu:0"]
    assert overrides_of(options, asked, Mode.SSD) == asked
    assert overrides_of(Namespace(device_for_device=False), asked, Mode.SPECULATIVE) == asked


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


def test_llama_batched_bench_is_run_for_as_many_rows(tmp_path: Path) -> None:
    """With room for all of them; the lines around its own are passed over."""
    tool = tmp_path / "llama-batched-bench"
    tool.write_text(BATCHED_TOOL.format(python=sys.executable), encoding="utf-8")
    tool.chmod(0o755)
    assert LlamaBatchedBench(tool, Path("m.gguf"), 2).rate(PAIR) == 21.0


def test_llama_cpp_makes_exactly_the_tokens_that_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From an empty cache each time, so that the prompt is read by both runs of a slope."""
    module = ModuleType("llama_cpp")
    exec(LLAMA_CPP, vars(module))
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    times = iter([0.0, 6.0, 10.0, 12.0])
    peer = LlamaCppPython(Path("m.gguf"), 2, clock=lambda: next(times))
    assert peer.rate(WORKS[2]) == 256 / (6.0 - 2.0)
    assert (peer._llama.made, peer._llama.resets) == (272 + 16, 2)
    peer.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [(transformers, "one prompt at a time only"), (llama, "several prompts at once need --llama-batched")],
)
def test_peers_that_answer_one_at_a_time_are_no_measure_of_a_batch(
    make: Callable[[Namespace, str], object], message: str
) -> None:
    """They are skipped, with the reason."""
    options = Namespace(batch=8, gguf=Path("m.gguf"), llama_batched_bench=None, threads=2)
    with pytest.raises(MissingPeerError, match=message):
        make(options, "m.gguf")


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

    def test_several_prompts_are_written_before_the_first_answer_is_read(self) -> None:
        """So that the engine has them all at once; the time is that of the last."""
        ours = self.ours()
        assert ours.rate(PAIR) == 2 * 256 / (1 - 5)
        ours.close()

    def test_both_runs_of_a_slope_read_the_prompt(self) -> None:
        """Nothing of it is kept from the first run: that one's reading would be counted as decoding."""
        ours = self.ours()
        command = ours._process.args
        assert isinstance(command, list)
        assert command[-2:] == ["--set", "engine.enable_prefix_caching=false"]
        ours.close()

    @pytest.mark.parametrize(
        ("text", "message"),
        [("wrong", "ours, ssd, prompt 'a': .*no"), ("short", r"got answers of \[271\] tokens, expected 272")],
    )
    def test_an_answer_that_is_none_is_an_error(self, text: str, message: str) -> None:
        """Its time would be worth nothing."""
        ours = self.ours()
        with pytest.raises(SSDError, match=message):
            ours.rate(Work((Prompt("a", text),), ((),), 16, 272))
        ours.close()

"""`ssd-run bench` as a command: what it refuses, what it prints and writes, and its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ssd_runtime.bench.answering import Pass, Streamed
from ssd_runtime.bench.plan import Cell
from ssd_runtime.bench.prompts import Prompt, PromptSet
from ssd_runtime.bench.rows import Sample, row
from ssd_runtime.bench.run import Results
from ssd_runtime.cli.bench import Asked, cores_text, device_overrides, report_results
from ssd_runtime.cli.main import main
from ssd_runtime.device.placement import Places
from ssd_runtime.settings.load import load_settings
from ssd_runtime.settings.schema import Settings
from ssd_runtime.types import Mode, SamplingParams

ASKED = Asked((Mode.SSD,), (1,), (0.0,), ("p.jsonl",), SamplingParams(max_tokens=8), seed=0, repeat=2)


def run(*arguments: str) -> int:
    """Run one command line in this process; its exit status."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    return int(end.value.code or 0)


def results() -> Results:
    """One row, of one answer in two pieces."""
    answer = Streamed("a", (1, 2), 0.0, ((1.0, 1), (3.0, 1)))
    cell = Cell(PromptSet("set", (Prompt("a", "?"),)), 0.0, 1)
    samples = [Sample(0, 0, 0, Pass((answer,), peak_bytes=10**6))]
    return Results([row(cell, "ssd", "0 + 1", samples, (), "f00d")], [samples])


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--modes", "fast"), "--modes fast: 'fast' is not a valid Mode; expected values like autoregr"),
            (("--modes", ""), "--modes : '' is not a valid Mode"),
            (("--batches", "1,x"), "--batches 1,x: invalid literal for int()"),
            (("--batches", "0"), "--batches 0: got 0, expected 1 to engine.max_batch_size, which is 8"),
            (("--batches", "9"), "--batches 9: got 9, expected 1 to engine.max_batch_size, which is 8"),
            (("--temperatures", "warm"), "--temperatures warm: could not convert"),
            (("--temperatures", "0,3"), "--temperature: got 3.0, expected a number from 0 (greedy) to 2"),
            (("--temperatures", "nan"), "--temperature: got nan, expected"),
            (("--prompts", "nowhere.jsonl"), "--prompts nowhere.jsonl: cannot be read"),
            (("--json", "no/such/folder/b.json"), "--json no/such/folder/b.json: cannot be written"),
            (("--plots", "pyproject.toml/in"), "--plots pyproject.toml/in: cannot be made"),
            (("--set", "engine.draft_model=none"), "--set engine.draft_model: got 'none', but mode specul"),
            (("--set", "engine.sampler=magic"), "--set engine.sampler: 'magic' is not available"),
            (("--set", "placement.draft=cpu:4000"), "--set placement.draft: 'cpu:4000' names cores [4000]"),
            (("--device-for-device",), "--device-for-device: placement.target or placement.draft is auto"),
            (("--repeat", "0"), "--repeat"),
            (("--mode", "ssd"), "--mode"),
        ],
    )
    def test_what_cannot_be_run_is_refused_before_anything_is_loaded(
        self,
        arguments: tuple[str, ...],
        message: str,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Status 2, one message, no traceback, nothing on stdout."""
        if "--plots" in arguments:
            pytest.importorskip("matplotlib")
        monkeypatch.chdir(Path(__file__).parents[2])
        assert run("bench", *arguments) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert "Traceback" not in captured.err
        assert captured.out == ""

    def test_pictures_without_matplotlib_are_refused_with_the_way_to_get_it(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Before hours of measuring, not after them."""
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert run("bench", "--plots", "anywhere") == 2
        assert "pip install 'ssd-runtime[plots]'" in capsys.readouterr().err


class TestReport:
    def test_the_table_goes_to_stdout_and_json_to_its_file(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """The file has the options, the settings without the daemon's, and the row."""
        path = tmp_path / "b.json"
        report_results(results(), asked=ASKED, settings=Settings(), json_file=path, plots=None)
        assert "set, T 0; ids f00d" in capsys.readouterr().out
        data = json.loads(path.read_text(encoding="utf-8"))
        options = data["surroundings"]["options"]
        assert options["params"]["max_tokens"] == 8
        assert {"server", "log"} & set(options["settings"]) == set()
        assert "policy" not in options["settings"]["scheduler"]
        assert [found["tokens_per_second"] for found in data["rows"]] == [0.5]

    @pytest.mark.parametrize(
        ("places", "mode", "expected"),
        [
            (Places(frozenset({0}), frozenset({1})), Mode.AUTOREGRESSIVE, "0"),
            (Places(frozenset({0}), frozenset({1})), Mode.SSD, "0 + 1"),
            (Places(frozenset(range(4)), frozenset({4, 6})), Mode.SPECULATIVE, "0-3 + 4,6"),
            (
                Places(frozenset({0, 1}), frozenset({0, 1}), target_device="cuda:0"),
                Mode.HYBRID,
                "cuda:0 + 0-1",
            ),
        ],
    )
    def test_the_column_cores_says_what_each_role_may_use(
        self, places: Places, mode: Mode, expected: str
    ) -> None:
        """Plain decoding has one role; a GPU stands for the cores that feed it."""
        assert cores_text(places, mode) == expected


@pytest.mark.parametrize(
    ("mode", "draft"),
    [
        (Mode.AUTOREGRESSIVE, "cpu:0"),
        (Mode.SPECULATIVE, "cpu:0"),
        (Mode.SSD, "cpu:1"),
        (Mode.HYBRID, "cpu:1"),
    ],
)
def test_device_for_device_only_what_may_draft_beside_the_target_has_a_second_device(
    mode: Mode, draft: str
) -> None:
    """Plain and speculative decoding have the target's, ssd adds another: the SSD paper's comparison."""
    given = ["placement.target=cpu:0", "placement.draft=cpu:1"]
    placement = load_settings(None, device_overrides(None, given, mode), {}).settings.placement
    assert (placement.target, placement.draft) == ("cpu:0", draft)


@pytest.mark.parametrize(("batch", "says_so"), [(8, False), (16, True)])
def test_modes_that_are_not_what_they_are_called_in_a_crowd_are_told(
    batch: int, says_so: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the threshold rows look up instead of drafting; nobody shall take that for a draft's rate."""
    asked = replace(ASKED, batches=(1, batch))
    report_results(results(), asked=asked, settings=Settings(), json_file=None, plots=None)
    assert ("above 8 requests (engine.fallback_batch_threshold)" in capsys.readouterr().err) is says_so


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_small_bench_from_end_to_end(tmp_path: Path) -> None:
    """Two modes of the embedded model as processes: a table, JSON, a trace for each mode, status 0."""
    command = ["bench", "--modes", "autoregressive,ssd", "--batches", "1", "--temperatures", "0"]
    files = ["--json", "b.json", "--trace", "t.json", "--max-tokens", "4", "--repeat", "1"]
    program = "from ssd_runtime.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, *command, *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "1/T_draft" in done.stdout
    rows = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))["rows"]
    assert [found["mode"] for found in rows] == ["autoregressive", "ssd"]
    assert (tmp_path / "t-autoregressive.json").is_file()
    assert (tmp_path / "t-ssd.json").is_file()

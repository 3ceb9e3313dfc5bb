"""Whole benches: scripted contenders with known times, and toy engines in every mode."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ssd_runtime.bench.answering import Block, Pass, Recorder, Streamed, answer_block
from ssd_runtime.bench.ids import IdsDifferError
from ssd_runtime.bench.plan import Cell, cells
from ssd_runtime.bench.plots import draw_plots
from ssd_runtime.bench.prompts import Prompt, PromptSet
from ssd_runtime.bench.report import COLUMNS, as_json, tables
from ssd_runtime.bench.rows import Row
from ssd_runtime.bench.run import Results, run_bench
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.engines import toy_engine
from ssd_runtime.types import Mode, SamplingParams

SET = PromptSet("toys", tuple(Prompt(f"p{i}", f"Prompt {i}: why?") for i in range(5)))
PARAMS = SamplingParams(max_tokens=12)
DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"


@dataclass
class Scripted:
    """Answers with two pieces, three tokens `pace` seconds after the first; notes what it was asked."""

    name: str
    pace: float
    cores: str = "0"
    asked: list[Block] = field(default_factory=list)

    async def answer(self, block: Block) -> Pass:
        self.asked.append(block)
        now = len(self.asked)  # the second time, everything takes twice as long
        answers = tuple(
            Streamed(r.id, (1, 2, 3, 4), 0.0, ((0.5, 1), (0.5 + self.pace * now, 3))) for r in block.requests
        )
        return Pass(answers, self.commands(), self.rounds(), peak_bytes=now * 10**6)

    def commands(self) -> tuple[CommandRecord, ...]:
        verifies = tuple(CommandRecord("target", "verify", 1, 1, t, t + 0.75) for t in (0.0, 1.0, 2.0))
        if self.name != Mode.SSD:
            return verifies
        builds = tuple(CommandRecord("draft", "build", 1, 1, t, t + 0.5, passes=2) for t in (0.0, 1.0, 2.0))
        return verifies + builds

    def rounds(self) -> tuple[RoundRecord, ...]:
        if self.name != Mode.SSD:
            return (RoundRecord("p0", "none", False, 0, 0, 1),) * 4
        return (RoundRecord("p0", "cache", True, 4, 3, 4), RoundRecord("p0", "ngram", True, 4, 0, 1))


async def bench(
    contenders: Sequence[Any], todo: Sequence[Cell], repeat: int = 2, params: SamplingParams = PARAMS
) -> Results:
    return await run_bench(
        contenders, todo, params, seed=7, repeat=repeat, progress=lambda what, done, total: None
    )


class TestFigures:
    """One prompt, one batch: every figure can be worked out by hand."""

    async def rows(self) -> list[Row]:
        one = PromptSet("one", SET.prompts[:1])
        contenders = [Scripted("autoregressive", 1.0), Scripted("ssd", 0.25, cores="0 + 1")]
        return (await bench(contenders, [Cell(one, 0.0, 1)])).rows

    async def test_a_rate_is_the_median_over_the_repetitions(self) -> None:
        """3 tokens in 1 and in 2 seconds; four times as fast; the ceiling is one token a draft pass."""
        plain, ssd = await self.rows()
        assert plain.tokens_per_second == pytest.approx((3 / 1 + 3 / 2) / 2)
        assert ssd.times_plain == pytest.approx(4.0)
        assert ssd.draft_pass_seconds == pytest.approx(0.25)
        assert ssd.ceiling_tokens_per_second == pytest.approx(4.0)
        assert plain.ceiling_tokens_per_second is None

    async def test_waits_are_percentiles_over_everything(self) -> None:
        """Gaps of 0.25 and 0.5 seconds under ssd; the first token always came after half a second."""
        _, ssd = await self.rows()
        assert ssd.first_token_seconds_p50 == ssd.first_token_seconds_p99 == 0.5
        assert ssd.gap_seconds_p50 == pytest.approx(0.375)
        assert ssd.gap_seconds_p99 == pytest.approx(0.4975)

    async def test_rates_of_speculation_are_those_of_the_round_records(self) -> None:
        """3 of 8 accepted, one hit of two lookups; plain decoding has no such rates."""
        plain, ssd = await self.rows()
        assert (ssd.acceptance_rate, ssd.mean_acceptance_length, ssd.hit_rate) == (3 / 8, 2.5, 0.5)
        assert (plain.acceptance_rate, plain.mean_acceptance_length, plain.hit_rate) == (None, None, None)

    async def test_shares_and_memory_are_those_of_the_mode(self) -> None:
        """Busy 2.25 and 1.5 of 2.75 seconds; a quarter of a second between verifications is Python's."""
        plain, ssd = await self.rows()
        assert ssd.target_idle_share == pytest.approx(1 - 2.25 / 2.75)
        assert ssd.draft_idle_share == pytest.approx(1 - 1.5 / 2.75)
        assert plain.draft_idle_share is None
        assert ssd.python_seconds_per_round == pytest.approx(0.25)
        assert ssd.peak_bytes == 2 * 10**6
        assert (plain.cores, ssd.cores) == ("0", "0 + 1")


async def test_a_prompt_has_the_same_seed_in_every_mode_batch_and_repetition() -> None:
    """And the cell's temperature; prompts have different seeds."""
    contenders = [Scripted("autoregressive", 1.0), Scripted("ssd", 1.0)]
    await bench(contenders, cells([SET], [0.0, 1.0], [1, 4]))
    asked = [request for contender in contenders for block in contender.asked for request in block.requests]
    seeds = {prompt.id: {r.params.seed for r in asked if r.id == prompt.id} for prompt in SET.prompts}
    assert all(len(found) == 1 for found in seeds.values())
    assert len(set.union(*seeds.values())) == len(SET.prompts)
    assert {request.params.temperature for request in asked} == {0.0, 1.0}


async def test_modes_take_turns_and_progress_is_told() -> None:
    """Five prompts at batch 1 are two blocks; every other turn runs backwards."""
    told: list[tuple[str, int, int]] = []
    contenders = [Scripted("autoregressive", 1.0), Scripted("ssd", 1.0)]
    await run_bench(
        contenders,
        [Cell(SET, 0.0, 1)],
        PARAMS,
        seed=0,
        repeat=1,
        progress=lambda *report: told.append(report),
    )
    assert [what.partition(",")[0] for what, _, _ in told] == [
        "autoregressive",
        "ssd",
        "ssd",
        "autoregressive",
    ]
    assert [(done, total) for _, done, total in told] == [(0, 4), (1, 4), (2, 4), (3, 4)]


@dataclass
class Toy:
    """A toy engine in one mode, in this process."""

    name: str
    engine: Any
    recorder: Recorder
    cores: str = "toy"

    async def answer(self, block: Block) -> Pass:
        return await answer_block(self.engine, self.recorder, block)


@asynccontextmanager
async def toys(seeds: dict[Mode, int]) -> AsyncIterator[list[Toy]]:
    async with AsyncExitStack() as stack:
        found = []
        for mode, seed in seeds.items():
            recorder = Recorder()
            engine = toy_engine(f"scheduler.policy={mode.value}", seed=seed, trace=recorder)
            found.append(Toy(mode.value, await stack.enter_async_context(engine), recorder))
        yield found


@pytest.fixture(scope="module")
def measured() -> Results:
    """Every mode of a toy model, two temperatures, two batch sizes."""

    async def measure() -> Results:
        async with toys(dict.fromkeys(Mode, 1)) as contenders:
            return await bench(contenders, cells([SET], [0.0, 1.0], [1, 3]))

    return asyncio.run(measure())


class TestToyEngines:
    def test_every_mode_gives_the_same_ids_and_each_cell_a_row_for_each_mode(self, measured: Results) -> None:
        """One hash for each temperature, whatever the mode and the batch."""
        assert [row.mode for row in measured.rows] == [mode.value for mode in Mode] * 4
        assert len({row.ids for row in measured.rows}) == 2
        assert len({(row.temperature, row.ids) for row in measured.rows}) == 2

    def test_only_what_drafts_has_rates_of_drafting(self, measured: Results) -> None:
        """And only ssd, which builds while the target verifies, has a ceiling and a hit rate."""
        rows = {row.mode: row for row in measured.rows[:4]}
        plain, speculative, ssd = (rows[mode] for mode in ("autoregressive", "speculative", "ssd"))
        assert (plain.acceptance_rate, plain.hit_rate, plain.draft_idle_share) == (None, None, None)
        assert speculative.acceptance_rate is not None
        assert (speculative.hit_rate, speculative.ceiling_tokens_per_second) == (None, None)
        assert ssd.hit_rate is not None
        assert ssd.ceiling_tokens_per_second is not None
        assert all(row.python_seconds_per_round is not None for row in rows.values())
        assert all(row.times_plain is not None for row in rows.values())

    async def test_an_engine_with_other_weights_fails_the_run(self) -> None:
        """The check is on: a mode that computes something else cannot hide behind its speed."""
        async with toys({Mode.AUTOREGRESSIVE: 1, Mode.SSD: 2}) as contenders:
            with pytest.raises(
                IdsDifferError, match=r"prompt 'p\d' of toys at T 0: token \d+ is \d+ in auto"
            ):
                await bench(contenders, [Cell(SET, 0.0, 1)])


class TestReport:
    def test_the_table_has_every_figure_and_cuts_none(self, measured: Results) -> None:
        """A table for each temperature, a line for each mode and batch, the ids above."""
        written = io.StringIO()
        console = Console(width=10_000, file=written)
        for table in tables(measured.rows):
            console.print(table)
        text = written.getvalue()
        assert "…" not in text
        assert all(name in text for name in COLUMNS)
        assert all(text.count(mode.value) == 4 for mode in Mode)
        assert text.count("toys, T 0; ids") == text.count("toys, T 1; ids") == 1

    def test_json_has_surroundings_rows_and_raw_samples(self, measured: Results) -> None:
        """Everything survives a round trip, and the samples give the row's counts again."""
        data = json.loads(json.dumps(as_json(measured, {"repeat": 2})))
        assert data["surroundings"]["options"] == {"repeat": 2}
        assert {"version", "torch", "python", "machine", "processor", "cores", "load"} < set(
            data["surroundings"]
        )
        assert len(data["rows"]) == 16
        for row in data["rows"]:
            assert set(row) == {entry.name for entry in fields(Row)} | {"samples"}
            assert {sample["repetition"] for sample in row["samples"]} == {0, 1}
            assert sum(sample["totals"]["rounds"] for sample in row["samples"]) == row["rounds"]
            gaps = [gap for sample in row["samples"] for gap in sample["gap_seconds"]]
            assert min(gaps) <= row["gap_seconds_p50"] + 1e-6 <= max(gaps) + 2e-6

    def test_pictures_are_drawn(self, measured: Results, tmp_path: Path) -> None:
        """Rates, first tokens, gaps; three files that are PNG."""
        pytest.importorskip("matplotlib")
        paths = draw_plots(measured, tmp_path)
        assert {path.name for path in paths} == {"tokens_per_second.png", "first_token.png", "gap.png"}
        assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)

    def test_every_column_is_explained(self) -> None:
        """docs/benchmarks.md has a row for each."""
        text = DOCUMENT.read_text(encoding="utf-8")
        assert [name for name in COLUMNS if f"\n| {name} |" not in text] == []

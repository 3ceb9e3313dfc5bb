"""`ssd-run bench`: how fast each mode is on this machine, and whether all of them say the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from ssd_runtime.bench.answering import Recorder
from ssd_runtime.bench.plan import cells
from ssd_runtime.bench.plots import check_plots, draw_plots
from ssd_runtime.bench.process import EngineProcess, MakeEngine
from ssd_runtime.bench.prompts import SHIPPED, read_sets
from ssd_runtime.bench.report import as_json, tables
from ssd_runtime.bench.run import Contender, Progress, Results, request_of, run_bench
from ssd_runtime.cli.options import ConfigOption, SetOption, TraceOption, load
from ssd_runtime.cli.progress import WaitLine, ticking, wait_line
from ssd_runtime.cli.running import note, run
from ssd_runtime.cli.sampling import IgnoreEosOption, sampling
from ssd_runtime.clock import monotonic
from ssd_runtime.errors import ConfigError
from ssd_runtime.faces import AnsweringEngine
from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.schema import Settings
from ssd_runtime.telemetry.log import configure_logging
from ssd_runtime.telemetry.trace import open_trace
from ssd_runtime.types import Mode, SamplingParams

if TYPE_CHECKING:
    from ssd_runtime.device.placement import Places

WARM_UP_TOKENS = 8
ALL_MODES = ",".join(Mode)
NO_LIMIT = 10_000
"""Characters in a line: a cut table would hide figures, a terminal wraps what is too long."""
T = TypeVar("T")

SAMPLER_OF_MANY_TEXTS = "rejection"
"""Under it, above temperature 0, what a seed gives depends on mode and timing."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be compared. prompts: sources, as the command line names them.

    one_text: whether a seed gives the same ids in every mode, see `run_bench`. device_for_device: see
    `device_overrides`.
    """

    modes: tuple[Mode, ...]
    batches: tuple[int, ...]
    temperatures: tuple[float, ...]
    prompts: tuple[str, ...]
    params: SamplingParams
    seed: int
    repeat: int
    one_text: bool = True
    device_for_device: bool = False


def bench(
    config: ConfigOption = None,
    overrides: SetOption = None,
    trace: TraceOption = None,
    modes: Annotated[str, typer.Option(help="Modes to compare; replaces scheduler.policy.")] = ALL_MODES,
    batches: Annotated[str, typer.Option(help="Numbers of requests in flight.")] = "1,4",
    temperatures: Annotated[str, typer.Option(help="Temperatures; 0 is greedy.")] = "0,1",
    prompts: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE[:N]", help="A JSON-lines file of prompts, its first N; may be repeated."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens of an answer.")] = 64,
    ignore_eos: IgnoreEosOption = False,
    seed: Annotated[int, typer.Option(help="Prompt i gets a seed derived from (seed, i).")] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Repetitions; every other one runs backwards.")] = 2,
    device_for_device: Annotated[
        bool, typer.Option("--device-for-device", help="Only ssd has placement.draft for itself.")
    ] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write rows and raw samples to FILE.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Draw the rows into DIR (PNG; needs matplotlib).")
    ] = None,
) -> None:
    """Compare the modes: rates, waits, acceptance, memory. Status 1 where their tokens differ."""
    chosen = _each("--modes", modes, Mode, ALL_MODES)
    placed = partial(device_overrides, config, overrides) if device_for_device else lambda mode: overrides
    loaded = {mode: load(config, placed(mode), mode) for mode in chosen}
    settings = loaded[chosen[0]].settings
    asked = Asked(
        modes=chosen,
        batches=_each("--batches", batches, partial(_batch, settings.engine.max_batch_size), "1,4"),
        temperatures=_each("--temperatures", temperatures, float, "0,0.7,1"),
        prompts=tuple(prompts or [str(SHIPPED)]),
        params=sampling(settings, max_tokens=max_tokens, ignore_eos=ignore_eos),
        seed=seed,
        repeat=repeat,
        one_text=settings.engine.sampler.name != SAMPLER_OF_MANY_TEXTS,
        device_for_device=device_for_device,
    )
    for temperature in asked.temperatures:
        sampling(settings, temperature=temperature)
    check_files(json_file, plots)
    line = wait_line(note)
    report = partial(report_results, asked=asked, settings=settings, json_file=json_file, plots=plots)
    raise typer.Exit(run(_work(asked, _processes(asked, loaded, trace), line, report)))


async def _work(
    asked: Asked, processes: Sequence[EngineProcess], line: WaitLine, report: Callable[[Results], None]
) -> int:
    async with ticking(line), AsyncExitStack() as stack:
        for done, process in enumerate(processes):
            line(f"loading, mode {process.name}", done, len(processes))
            await stack.enter_async_context(process)
        results = await measure(asked, processes, line)
    report(results)
    return 0


async def measure(asked: Asked, contenders: Sequence[Contender], progress: Progress) -> Results:
    """Run everything that is asked for on contenders that are ready."""
    todo = cells(read_sets(asked.prompts), asked.temperatures, asked.batches)
    return await run_bench(
        contenders,
        todo,
        asked.params,
        seed=asked.seed,
        repeat=asked.repeat,
        progress=progress,
        one_text=asked.one_text,
    )


def report_results(
    results: Results, *, asked: Asked, settings: Settings, json_file: Path | None, plots: Path | None
) -> None:
    """The table on stdout, and the files that were asked for. Raises `ConfigError`."""
    from rich.console import Console

    console = Console(file=sys.stdout, width=NO_LIMIT)
    for table in tables(results.rows):
        console.print(table)
    most = settings.engine.fallback_batch_threshold
    if max(asked.batches) > most and {Mode.SPECULATIVE, Mode.SSD} & set(asked.modes):
        note(
            f"above {most} requests (engine.fallback_batch_threshold) speculative and ssd leave the draft out"
        )
    if json_file is not None:
        said = settings.model_dump(
            mode="json", exclude={"server": True, "log": True, "scheduler": {"policy"}}
        )
        options = asdict(asked) | {"settings": said}
        text = json.dumps(as_json(results, options), indent=1, ensure_ascii=False)
        json_file.write_text(f"{text}\n", encoding="utf-8")
    if plots is not None:
        for path in draw_plots(results, plots):
            note(f"drawn: {path}")


def check_files(json_file: Path | None, plots: Path | None) -> None:
    """Raise `ConfigError` where the results could not be written: before hours are spent, not after."""
    if json_file is not None and (json_file.is_dir() or not json_file.absolute().parent.is_dir()):
        raise ConfigError(f"--json {json_file}: cannot be written; expected a file in a folder that exists")
    if plots is not None:
        check_plots(plots)


def device_overrides(config: Path | None, overrides: Sequence[str] | None, mode: Mode) -> Sequence[str]:
    """`overrides`, and for a mode whose roles take turns that its draft shares the target's device.

    As papers count: plain and speculative decoding have one device, ssd adds another. Raises `ConfigError`
    where the devices are not named.
    """
    placement = load(config, overrides, mode).settings.placement
    if "auto" in (placement.target, placement.draft):
        raise ConfigError(
            "--device-for-device: placement.target or placement.draft is auto; name both, for example "
            "--set placement.target=cpu:0 --set placement.draft=cpu:1"
        )
    if mode in (Mode.AUTOREGRESSIVE, Mode.SPECULATIVE):
        return [*(overrides or ()), f"placement.draft={placement.target}"]
    return overrides or ()


def cores_text(places: Places, mode: Mode) -> str:
    """Cores, or devices, of the target and, where the mode has one, of the draft."""
    target = _place_text(places.target_device, places.target)
    if mode is Mode.AUTOREGRESSIVE:
        return target
    return f"{target} + {_place_text(places.draft_device, places.draft)}"


def _place_text(device: str, cores: frozenset[int]) -> str:
    if device != "cpu":
        return device
    numbers = sorted(cores)
    if len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def _processes(asked: Asked, loaded: dict[Mode, Loaded], trace: Path | None) -> list[EngineProcess]:
    """The modes' processes, not started. Raises `ConfigError` for what would not start."""
    first = read_sets(asked.prompts)[0].prompts[0]
    warm_up = request_of(first, replace(asked.params, max_tokens=WARM_UP_TOKENS, seed=asked.seed))
    return [
        EngineProcess(mode.value, _checked(mode, loaded[mode]), _maker(mode, loaded[mode], trace), warm_up)
        for mode in asked.modes
    ]


def _checked(mode: Mode, loaded: Loaded) -> str:
    """The cores. Raises `ConfigError` for settings that cannot be met, or that would not be this mode."""
    from ssd_runtime.hooks.manager import PluginManager
    from ssd_runtime.inventory import check_parts, places

    manager = PluginManager()
    manager.load(loaded.settings.plugins)
    check_parts(loaded, manager.registries)
    if mode in (Mode.SPECULATIVE, Mode.SSD) and loaded.settings.engine.draft_model == "none":
        raise ConfigError(
            f"{loaded.where('engine.draft_model')}: got 'none', but mode {mode.value} needs a draft; "
            "name one, or leave the mode out of --modes"
        )
    return cores_text(places(loaded), mode)


def _maker(mode: Mode, loaded: Loaded, trace: Path | None) -> MakeEngine:
    own_trace = trace.with_stem(f"{trace.stem}-{mode.value}") if trace else None
    return partial(_make_engine, loaded, own_trace)


def _make_engine(loaded: Loaded, trace: Path | None) -> tuple[AnsweringEngine, Recorder]:
    """In the mode's own process: its engine, and what it reports to."""
    from ssd_runtime.app import Engine

    configure_logging(loaded.settings.log)
    recorder = Recorder(open_trace(trace, monotonic) if trace else None)
    return Engine(loaded, trace=recorder), recorder


def _each(option: str, text: str, read: Callable[[str], T], example: str) -> tuple[T, ...]:
    """The values of an option like `1,4`, each once. Raises `ConfigError`."""
    try:
        values = tuple(dict.fromkeys(read(part.strip()) for part in text.split(",")))
    except ValueError as error:
        raise ConfigError(f"{option} {text}: {error}; expected values like {example}") from None
    return values


def _batch(most: int, text: str) -> int:
    number = int(text)
    if not 1 <= number <= most:
        raise ValueError(f"got {number}, expected 1 to engine.max_batch_size, which is {most}")
    return number

"""The composition root: settings in, a running engine's parts out.

Nothing here decides anything that the settings do not say; nothing elsewhere knows which plugin serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_runtime.capacity import TARGET_LOWER, new_kv
from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import CommandRecord, Worker
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.engine.reload import Replaceable
from ssd_runtime.engine.scheduler import Scheduler
from ssd_runtime.engine.target import TargetWorker
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.errors import ConfigError
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.inventory import KV_DTYPES, check_parts, log_kernels, places
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.preemption import make_preemption
from ssd_runtime.memory.swap import SwappingWorker
from ssd_runtime.parts import Parts
from ssd_runtime.roles import roles
from ssd_runtime.settings.load import Loaded
from ssd_runtime.speculations import SpeculationMaker
from ssd_runtime.telemetry.observers import Broadcast
from ssd_runtime.telemetry.trace import RecordSink, open_trace

if TYPE_CHECKING:
    import torch

    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.models.loading import LoadedModel

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: unknown)."""
LoadModel = Callable[[str, "Quantizer", Progress], "LoadedModel"]


def no_progress(what: str, done: int, total: int) -> None:
    """Report to nobody."""


def load_configured_model(name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
    """Find and load the model called `name`. Raises `ModelError`."""
    from ssd_runtime.models.loading import load, resolve

    return load(resolve(name), quantizer, progress=progress)


def build(
    loaded: Loaded,
    load_model: LoadModel,
    progress: Progress,
    trace: Path | RecordSink | None,
    plugins: Sequence[object] = (),
) -> Parts:
    """Load everything that `loaded` names and put it together. Blocks; run it on a worker thread.

    trace: a file for Chrome trace events, or what takes the records itself.
    plugins: objects with hooks, registered after those that are installed or configured.
    Raises `ConfigError` for settings that cannot be met here, `ModelError` for models, `PluginError`.
    """
    registries = available_parts(loaded, plugins)
    log_kernels()
    with enough_memory():
        return _Builder(loaded, registries, load_model, progress, trace).parts()


def available_parts(loaded: Loaded, plugins: Sequence[object] = ()) -> Registries:
    """What plugins provide, with all that `loaded` names; raises `ConfigError` or `PluginError`."""
    manager = PluginManager()
    manager.load(loaded.settings.plugins)
    for plugin in plugins:
        manager.register(plugin, getattr(plugin, "__name__", type(plugin).__name__))
    check_parts(loaded, manager.registries)
    return manager.registries


@contextmanager
def enough_memory() -> Iterator[None]:
    """While models load: raises `ConfigError` where memory is too short."""
    try:
        yield
    except MemoryError as error:
        raise ConfigError(
            f"this machine has too little memory for what is configured ({error}); choose a smaller "
            "engine.model, or fewer bits with engine.quantization and engine.draft_quantization"
        ) from error


class _Builder:
    """Puts one engine together, part by part."""

    def __init__(
        self,
        loaded: Loaded,
        registries: Registries,
        load_model: LoadModel,
        progress: Progress,
        trace: Path | RecordSink | None,
    ) -> None:
        self._settings = loaded.settings
        self._registries = registries
        self._load_model = load_model
        self._progress = progress
        self._clock = monotonic
        self._order = registries.orders.get(loaded.settings.scheduler.order)()
        self._trace = open_trace(trace, self._clock) if isinstance(trace, Path) else trace
        self._places = places(loaded)
        self._target_role, self._draft_role = roles(self._places)

    def parts(self) -> Parts:
        """The whole engine."""
        engine = self._settings.engine
        transfer = self._target_role.transfer
        model = self._model(self._registries, engine.model, engine.quantization.small, transfer)
        limits = Limits(
            context=min(
                self._settings.scheduler.max_tokens,
                self._settings.kv_cache_tokens,
                model.config.max_position,
            ),
            vocab_size=model.config.vocab_size,
            processed_logprobs=engine.logprobs_mode == "processed",
            warpers=self._registries.warpers,
            uses_priority=getattr(self._order, "uses_priority", True),
        )
        maker = SpeculationMaker(
            model,
            self._draft_role,
            self._model,
            self._clock,
            self._record(),
            apart=self._places.are_apart,
        )
        speculation = maker.make(self._settings, self._registries, limits.context)
        speculator = Replaceable(speculation.speculator, speculation.sources.remember)
        return Parts(
            core=self._core(model, speculator),
            speculator=speculator,
            speculation=speculation,
            maker=maker,
            tokenizer=model.tokenizer,
            limits=limits,
            clock=self._clock,
            trace=self._trace,
            model_name=model.name,
            observers=self._registries.observers.names(),
        )

    def _model(self, registries: Registries, name: str, quantization: str, transfer: Transfer) -> LoadedModel:
        from ssd_runtime.models.loading import place_model

        quantizer = registries.quantizers.get(quantization)()
        return place_model(self._load_model(name, quantizer, self._progress), transfer)

    def _core(self, model: LoadedModel, speculator: Replaceable) -> EngineCore:
        engine, scheduler = self._settings.engine, self._settings.scheduler
        num_blocks = -(-self._settings.kv_cache_tokens // engine.block_size)
        new_blocks = partial(BlockManager, num_blocks, engine.block_size)
        kv = self._target_kv(model, num_blocks)
        target = self._target(model, kv, num_blocks)
        return EngineCore(
            target=target,
            scheduler=Scheduler(
                new_blocks(),
                max_batch_size=engine.max_batch_size,
                max_batch_tokens=scheduler.max_batch_tokens,
                order=self._order,
                on_preempt=speculator.forget,
                preemption=make_preemption(self._settings, target.submit, kv),
                enable_prefix_caching=engine.enable_prefix_caching,
            ),
            new_blocks=new_blocks,
            speculator=speculator,
            clock=self._clock,
            max_queue=scheduler.max_queue,
            on_round=self._observers(),
            on_finish=speculator.finished,
        )

    def _target(self, model: LoadedModel, kv: PagedKV, num_blocks: int) -> TargetLane:
        """The lane that begins with `kv`; a fresh one gets its own."""
        engine, scheduler = self._settings.engine, self._settings.scheduler
        new_worker = partial(self._target_worker, model)

        def fresh_worker() -> Worker:
            return new_worker(self._target_kv(model, num_blocks))

        tokens = scheduler.max_batch_tokens
        drawn = min(engine.max_batch_size * (engine.speculative_length + 1), tokens)
        reserve = partial(model.decoder.reserve, tokens, drawn)
        return TargetLane(
            self._target_role.starting(new_worker(kv), fresh_worker, self._clock, self._record(), reserve)
        )

    def _target_kv(self, model: LoadedModel, num_blocks: int) -> PagedKV:
        engine = self._settings.engine
        dtype = _kv_dtype(engine.kv_cache_dtype)
        return new_kv(model.decoder, num_blocks, engine.block_size, dtype, whose="target", lower=TARGET_LOWER)

    def _target_worker(self, model: LoadedModel, kv: PagedKV) -> Worker:
        chosen = self._settings.engine.sampler
        sampler = self._registries.samplers.get(chosen.name)(**chosen.options)
        return SwappingWorker(TargetWorker(model.decoder, kv, sampler), kv, self._target_role.transfer)

    def _record(self) -> Callable[[CommandRecord], None] | None:
        return self._trace.command if self._trace is not None else None

    def _observers(self) -> Broadcast:
        registry = self._registries.observers
        listeners = {name: registry.get(name)().observe for name in registry.names()}
        return Broadcast(listeners | ({"trace": self._trace.round} if self._trace is not None else {}))


def _kv_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, KV_DTYPES[name])
    return dtype

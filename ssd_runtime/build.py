"""The composition root: settings in, a running engine's parts out.

Nothing here decides anything that the settings do not say; nothing elsewhere knows which plugin serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ssd_runtime.capacity import new_kv
from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import Lane, Worker
from ssd_runtime.drafts import Draft, make_draft
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.engine.scheduler import Scheduler
from ssd_runtime.engine.target import TargetWorker
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.errors import ConfigError
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.inventory import KV_DTYPES, check_parts, log_kernels, places
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.preemption import make_preemption
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.memory.swap import SwappingWorker
from ssd_runtime.parts import Parts
from ssd_runtime.roles import Role, roles
from ssd_runtime.settings.load import Loaded
from ssd_runtime.sources import Sources
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import DraftSource, ShadowSource
from ssd_runtime.speculation.memory import Memories
from ssd_runtime.speculation.mode_control import make_controller
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.telemetry.observers import Broadcast
from ssd_runtime.telemetry.trace import RecordSink, open_trace
from ssd_runtime.types import Mode

if TYPE_CHECKING:
    import torch

    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.memory.kv import PagedKV
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.models.loading import LoadedModel

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 0.5
"""How long a round waits for a draft that should have stopped; twice, see `DraftLane`."""
PATIENCE_VERIFICATIONS = 4

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
    manager = PluginManager()
    manager.load(loaded.settings.plugins)
    for plugin in plugins:
        manager.register(plugin, getattr(plugin, "__name__", type(plugin).__name__))
    check_parts(loaded, manager.registries)
    log_kernels()
    try:
        return _Builder(loaded, manager.registries, load_model, progress, trace).parts()
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
        self._target_role, self._draft_role = roles(places(loaded))
        self._draft_lane: DraftLane | None = None

    def parts(self) -> Parts:
        """The whole engine."""
        engine = self._settings.engine
        model = self._model(engine.model, engine.quantization.small, self._target_role.transfer)
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
        draft = self._draft(model)
        sources = Sources(engine, self._registries, limits.vocab_size)
        speculator = self._speculator(draft, sources, limits)
        return Parts(
            core=self._core(model, speculator, sources),
            speculator=speculator,
            tokenizer=model.tokenizer,
            limits=limits,
            has_draft=draft is not None,
            draft_weight_bytes=draft.weight_bytes if draft else 0,
            clock=self._clock,
            draft_lane=self._draft_lane,
            proposers=sources.proposers,
            trace=self._trace,
            model_name=model.name,
            draft_prefix_stats=draft.prefix_stats if draft else PrefixStats(),
        )

    def _model(self, name: str, quantization: str, transfer: Transfer) -> LoadedModel:
        from ssd_runtime.models.loading import place_model

        quantizer = self._registries.quantizers.get(quantization)()
        return place_model(self._load_model(name, quantizer, self._progress), transfer)

    def _draft(self, target: LoadedModel) -> Draft | None:
        if self._settings.scheduler.policy is Mode.AUTOREGRESSIVE:
            return None
        transfer = self._draft_role.transfer
        load = partial(self._model, transfer=transfer)
        return make_draft(self._settings, self._registries, target, load, self._clock, transfer)

    def _core(self, model: LoadedModel, speculator: Speculator, sources: Sources) -> EngineCore:
        engine, scheduler = self._settings.engine, self._settings.scheduler
        num_blocks = -(-self._settings.kv_cache_tokens // engine.block_size)
        new_blocks = partial(BlockManager, num_blocks, engine.block_size)
        kv = self._target_kv(model, num_blocks)
        new_worker = partial(self._target_worker, model)
        target = TargetLane(
            self._starting(
                self._target_role, new_worker(kv), lambda: new_worker(self._target_kv(model, num_blocks))
            )
        )
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
            on_finish=sources.remember,
        )

    def _target_kv(self, model: LoadedModel, num_blocks: int) -> PagedKV:
        engine = self._settings.engine
        lower = "engine.kv_cache_tokens, engine.max_batch_size or scheduler.max_tokens, or choose a smaller "
        return new_kv(
            model.decoder,
            num_blocks,
            engine.block_size,
            _kv_dtype(engine.kv_cache_dtype),
            whose="target",
            lower=lower + "engine.kv_cache_dtype",
        )

    def _target_worker(self, model: LoadedModel, kv: PagedKV) -> Worker:
        chosen = self._settings.engine.sampler
        sampler = self._registries.samplers.get(chosen.name)(**chosen.options)
        return SwappingWorker(TargetWorker(model.decoder, kv, sampler), kv, self._target_role.transfer)

    def _speculator(self, draft: Draft | None, sources: Sources, limits: Limits) -> Speculator:
        engine, scheduler = self._settings.engine, self._settings.scheduler
        budget = BudgetChooser(engine.branch_budget, engine.speculative_length)
        max_context = min(limits.context, draft.max_context) if draft else limits.context
        lane = self._draft_lane = None if draft is None else self._start_draft(draft, budget)
        drafting = DraftSource(lane, max_context) if lane is not None else None
        memories = Memories(caching=any(part.name == ShadowSource.name for part in engine.fallback))
        fallback = sources.fallback(memories, drafting)
        controller = make_controller(
            scheduler.policy,
            threshold=engine.fallback_batch_threshold,
            max_batch_size=engine.max_batch_size,
        )
        return Speculator(
            draft=lane,
            drafting=drafting,
            fallback=fallback,
            lookups=sources.lookups(fallback) if lane is not None else (),
            memories=memories,
            modes=Modes(controller, has_draft=lane is not None),
            budget=budget,
            length=engine.speculative_length,
            max_context=max_context,
            clock=self._clock,
        )

    def _start_draft(self, draft: Draft, budget: BudgetChooser) -> DraftLane:
        return DraftLane(
            self._starting(self._draft_role, draft.worker, draft.new_worker),
            name=draft.name,
            patience=lambda: _patience(budget),
            clock=self._clock,
        )

    def _starting(self, role: Role, first: Worker, make: Callable[[], Worker]) -> Callable[[], Lane]:
        record = self._trace.command if self._trace is not None else None
        return role.starting(first, make, self._clock, record)

    def _observers(self) -> Broadcast:
        registry = self._registries.observers
        listeners = {name: registry.get(name)().observe for name in registry.names()}
        return Broadcast(listeners | ({"trace": self._trace.round} if self._trace is not None else {}))


def _patience(budget: BudgetChooser) -> float:
    """Where verifying is slow, so is drafting: big models are not hanging."""
    return max(PATIENCE_SECONDS, PATIENCE_VERIFICATIONS * budget.verification_seconds)


def _kv_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, KV_DTYPES[name])
    return dtype

"""The composition root: settings in, a running engine's parts out.

Nothing here decides anything that the settings do not say; nothing elsewhere knows which plugin serves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from ssd_runtime.clock import Clock, monotonic
from ssd_runtime.device.cores import use_threads
from ssd_runtime.device.lane import Lane, Worker
from ssd_runtime.device.threads import ShareCores, shares
from ssd_runtime.drafts import Draft, make_draft
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.engine.scheduler import Scheduler
from ssd_runtime.engine.target import TargetWorker
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.inventory import KV_DTYPES, check_parts, log_kernels, places
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.preemption import make_preemption
from ssd_runtime.memory.swap import SwappingWorker
from ssd_runtime.settings.load import Loaded
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.fallback import DraftSource, ProposerSource, ShadowSource, Source
from ssd_runtime.speculation.guard import GuardedProposer
from ssd_runtime.speculation.hybrid import FixedMode, HybridController, ModeController
from ssd_runtime.speculation.memory import Memories
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.telemetry.observers import Broadcast
from ssd_runtime.telemetry.trace import RecordSink, open_trace
from ssd_runtime.types import Mode

if TYPE_CHECKING:
    import torch

    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.models.loading import LoadedModel
    from ssd_runtime.models.tokenizer import Tokenizer

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 0.5
"""How long a round waits for a draft that should have stopped; twice, see `DraftLane`."""
PATIENCE_VERIFICATIONS = 4
PROPOSER_SECONDS = 0.25

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is (0: unknown)."""
LoadModel = Callable[[str, "Quantizer", Progress], "LoadedModel"]


def no_progress(what: str, done: int, total: int) -> None:
    """Report to nobody."""


def load_configured_model(name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
    """Find and load the model called `name`. Raises `ModelError`."""
    from ssd_runtime.models.loading import load, resolve

    return load(resolve(name), quantizer, progress=progress)


@dataclass(slots=True)
class Parts:
    """Everything that a running engine consists of."""

    core: EngineCore
    speculator: Speculator
    tokenizer: Tokenizer
    limits: Limits
    has_draft: bool
    draft_weight_bytes: int
    clock: Clock
    lanes: list[Lane]
    draft_lane: DraftLane | None
    proposers: list[GuardedProposer]
    trace: RecordSink | None
    model_name: str

    async def run(self) -> None:
        """The engine's life, on the engine's loop."""
        await self.core.run()

    def status(self) -> dict[str, str]:
        """What the draft and each proposer say of themselves, by name."""
        draft = {"draft": self.draft_lane.status} if self.draft_lane is not None else {}
        return draft | {str(proposer.name): proposer.status for proposer in self.proposers}

    def close(self) -> None:
        """End the lanes and the trace."""
        for proposer in self.proposers:
            proposer.close()
        for lane in self.lanes:
            lane.close()
        for lane in self.lanes:
            lane.join(1.0)
        if self.trace is not None:
            self.trace.close()


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
    return _Builder(loaded, manager.registries, load_model, progress, trace).parts()


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
        from ssd_runtime.device.transfer import open_transfer

        self._settings = loaded.settings
        self._registries = registries
        self._load_model = load_model
        self._progress = progress
        self._clock = monotonic
        self._order = registries.orders.get(loaded.settings.scheduler.order)()
        self._trace = open_trace(trace, self._clock) if isinstance(trace, Path) else trace
        self._places = places(loaded)
        self._target_transfer = open_transfer(self._places.target_device)
        self._draft_transfer = open_transfer(self._places.draft_device)
        self._lanes: list[Lane] = []
        self._draft_lane: DraftLane | None = None
        self._proposers: list[GuardedProposer] = []

    def parts(self) -> Parts:
        """The whole engine."""
        engine = self._settings.engine
        model = self._model(engine.model, engine.quantization.small, self._target_transfer)
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
        speculator = self._speculator(draft, limits)
        return Parts(
            core=self._core(model, speculator),
            speculator=speculator,
            tokenizer=model.tokenizer,
            limits=limits,
            has_draft=draft is not None,
            draft_weight_bytes=draft.weight_bytes if draft else 0,
            clock=self._clock,
            lanes=self._lanes,
            draft_lane=self._draft_lane,
            proposers=self._proposers,
            trace=self._trace,
            model_name=model.name,
        )

    def _model(self, name: str, quantization: str, transfer: Transfer) -> LoadedModel:
        from ssd_runtime.models.loading import place_model

        quantizer = self._registries.quantizers.get(quantization)()
        return place_model(self._load_model(name, quantizer, self._progress), transfer)

    def _draft(self, target: LoadedModel) -> Draft | None:
        if self._settings.scheduler.policy is Mode.AUTOREGRESSIVE:
            return None
        load = partial(self._model, transfer=self._draft_transfer)
        return make_draft(self._settings, self._registries, target, load, self._clock, self._draft_transfer)

    def _core(self, model: LoadedModel, speculator: Speculator) -> EngineCore:
        engine, scheduler = self._settings.engine, self._settings.scheduler
        num_blocks = -(-self._settings.kv_cache_tokens // engine.block_size)
        kv = model.decoder.new_kv(num_blocks, engine.block_size, _kv_dtype(engine.kv_cache_dtype))
        sampler = self._registries.samplers.get(engine.sampler.name)(**engine.sampler.options)
        worker = SwappingWorker(TargetWorker(model.decoder, kv, sampler), kv, self._target_transfer)
        together, _ = shares(self._places.target, self._places.draft)
        sharing = ShareCores(worker, alone=len(self._places.target), together=together)
        target = self._lane("target", sharing, self._places.target, self._target_transfer)
        return EngineCore(
            target=target,
            scheduler=Scheduler(
                BlockManager(num_blocks, engine.block_size),
                max_batch_size=engine.max_batch_size,
                max_batch_tokens=scheduler.max_batch_tokens,
                order=self._order,
                on_preempt=speculator.forget,
                preemption=make_preemption(self._settings, target.submit, kv),
            ),
            speculator=speculator,
            clock=self._clock,
            max_queue=scheduler.max_queue,
            on_round=self._observers(),
        )

    def _speculator(self, draft: Draft | None, limits: Limits) -> Speculator:
        engine = self._settings.engine
        budget = BudgetChooser(engine.branch_budget, engine.speculative_length)
        lane = None
        if draft is not None:
            _, together = shares(self._places.target, self._places.draft)
            sharing = ShareCores(draft.worker, alone=len(self._places.draft), together=together)
            thread = self._lane("draft", sharing, self._places.draft, self._draft_transfer)
            lane = self._draft_lane = DraftLane(thread, name=draft.name, patience=lambda: _patience(budget))
        drafting = DraftSource(lane) if lane is not None else None
        memories = Memories()
        return Speculator(
            draft=lane,
            drafting=drafting,
            fallback=[self._source(name, memories, drafting, limits) for name in engine.fallback],
            memories=memories,
            controller=_controller(self._settings.scheduler.policy, lane is not None),
            budget=budget,
            length=engine.speculative_length,
            max_context=min(limits.context, draft.max_context) if draft else limits.context,
            clock=self._clock,
        )

    def _source(self, name: str, memories: Memories, drafting: DraftSource | None, limits: Limits) -> Source:
        if name == ShadowSource.name:
            return ShadowSource(memories.recall)
        if name == DraftSource.name and drafting is not None:
            return drafting
        proposer = self._registries.proposers.get(name)()
        guarded = GuardedProposer(
            proposer,
            vocab_size=limits.vocab_size,
            time_limit=PROPOSER_SECONDS,
            trusted=False,
            name=name,
        )
        self._proposers.append(guarded)
        return ProposerSource(name, guarded)

    def _lane(self, name: str, worker: Worker, cores: frozenset[int], transfer: Transfer) -> Lane:
        record = self._trace.command if self._trace is not None else None
        setup = partial(_prepare_thread, len(cores), transfer)
        lane = Lane(name, worker, clock=self._clock, cores=cores, setup=setup, on_record=record)
        self._lanes.append(lane)
        return lane

    def _observers(self) -> Broadcast:
        registry = self._registries.observers
        listeners = {name: registry.get(name)().observe for name in registry.names()}
        return Broadcast(listeners | ({"trace": self._trace.round} if self._trace is not None else {}))


def _prepare_thread(num_threads: int, transfer: Transfer) -> None:
    """Runs on a lane's own thread, before its first command."""
    use_threads(num_threads)
    transfer.bind()


def _patience(budget: BudgetChooser) -> float:
    """Where verifying is slow, so is drafting: big models are not hanging."""
    return max(PATIENCE_SECONDS, PATIENCE_VERIFICATIONS * budget.verification_seconds)


def _controller(policy: Mode, has_draft: bool) -> ModeController:
    if policy is Mode.HYBRID and has_draft:
        return HybridController((Mode.AUTOREGRESSIVE, Mode.SPECULATIVE, Mode.SSD))
    return FixedMode(policy)


def _kv_dtype(name: str) -> torch.dtype:
    import torch

    dtype: torch.dtype = getattr(torch, KV_DTYPES[name])
    return dtype

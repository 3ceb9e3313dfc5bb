"""The engine's rounds on scripted lanes: every step is the test's, so nothing depends on time."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ssd_runtime.clock import ManualClock
from ssd_runtime.device.lane import Worker
from ssd_runtime.device.supply import RoleLane
from ssd_runtime.device.transfer import HOST
from ssd_runtime.engine.core import EngineCore
from ssd_runtime.engine.live import LiveRequest
from ssd_runtime.engine.prepare import Limits, Prepared, prepare
from ssd_runtime.engine.reload import Replaceable
from ssd_runtime.engine.scheduler import Scheduler
from ssd_runtime.engine.target import TargetWorker
from ssd_runtime.engine.target_lane import TargetLane
from ssd_runtime.errors import SSDError
from ssd_runtime.faces import answer_of
from ssd_runtime.hooks.kinds import Order, Sampler
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.history import history_codecs
from ssd_runtime.memory.preemption import Preemption
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.memory.swap import HostSwap, SwappingWorker
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.sampling import fanout
from ssd_runtime.sampling.draw import DraftStep, draft_steps, draw_tokens
from ssd_runtime.sequence import Sequence as TokenSequence
from ssd_runtime.speculation.budget import BudgetChooser
from ssd_runtime.speculation.draft_lane import DraftLane
from ssd_runtime.speculation.drafting import DraftWorker
from ssd_runtime.speculation.fallback import DraftSource, ShadowSource, Source
from ssd_runtime.speculation.memory import Memories
from ssd_runtime.speculation.mode_control import FixedMode, ModeController
from ssd_runtime.speculation.model_draft import DecoderDraft, DraftModel
from ssd_runtime.speculation.modes import Modes
from ssd_runtime.speculation.speculator import Speculator
from ssd_runtime.stats import RoundRecord
from ssd_runtime.testing.scripted import VOCAB, ScriptedLane
from ssd_runtime.types import Answer, Mode, Output, Request, RowMode

PATIENT = 60.0


class PlainSampler:
    """The functions of `sampling/draw.py` as a sampler."""

    draw = staticmethod(draw_tokens)

    def draft(self, *arguments: object) -> list[DraftStep]:
        """See `draft_steps`."""
        return draft_steps(*arguments)  # type: ignore[arg-type]  # the protocol's own arguments


class WholeBudget(BudgetChooser):
    """Always the whole budget: no measurement changes what is built."""

    def choose(self, num_rows: int) -> int:
        """The most there may be."""
        return self._most


def even(margins: Sequence[float], budget: int) -> list[int]:
    """The budget in equal parts over all accepted lengths."""
    return fanout.uniform(budget, len(margins))


def draft_worker(
    draft: DraftModel, budget: int = 8, vocab_size: int = VOCAB, sampler: Sampler | None = None
) -> DraftWorker:
    """The worker of a draft's lane; `sampler`: instead of the coupled one."""
    return DraftWorker(
        draft,
        sampler or PlainSampler(),
        even,
        vocab_size=vocab_size,
        num_candidates=budget + 1,
        clock=ManualClock(),
    )


def decoder_draft(model: LoadedModel, num_blocks: int = 512, block_size: int = 4) -> DecoderDraft:
    """A toy model as a draft, with a prefix cache."""
    kv, blocks = model.decoder.new_kv(num_blocks, block_size), BlockManager(num_blocks, block_size)
    return DecoderDraft(model.decoder, kv, blocks, model.config.vocab_size, PrefixStats())


@dataclass(frozen=True, kw_only=True)
class RigSettings:
    """What a rig can be told; `length` is K.

    automatic: every command is done as it is submitted, so that builds reach their full depth.
    fallback: sources, or `draft` and `shadow` by name. patience: seconds, as `DraftLane` has them.
    start_draft: makes the draft's lane, in place of the scripted one. controller: replaces `mode`.
    sampler: the target's. lookups: who proposes in the low-latency mode. target_pauses: before each attempt
    to start the target again. around: what stands between each of the target's lanes and its worker.
    swap_tokens: what host memory holds of preempted requests' KV; None: they are recomputed. kv_dtype: of
    the target's KV. order: who is served next.
    """

    mode: Mode = Mode.SSD
    length: int = 4
    budget: int = 8
    num_blocks: int = 256
    block_size: int = 4
    max_batch_size: int = 4
    max_batch_tokens: int = 64
    max_queue: int = 64
    context: int = 256
    fallback: Sequence[str | Source] = ()
    controller: ModeController | None = None
    automatic: bool = True
    patience: float = PATIENT
    start_draft: Callable[[], RoleLane] | None = None
    sampler: Sampler | None = None
    enable_prefix_caching: bool = True
    swap_tokens: int | None = None
    history_codec: str = "none"
    kv_dtype: torch.dtype = torch.float32
    order: Order = operator.attrgetter("uid")
    lookups: Sequence[Source] = ()
    target_pauses: Sequence[float] = (0.0, 0.0, 0.0)
    around: Callable[[Worker], Worker] = lambda worker: worker


class Rig:
    """An `EngineCore` whose lanes are scripted. target, draft: those in use.

    pieces: what each request's listener heard, by id. records: every round. journal: submissions,
    completions and pieces in the order in which they happened.
    """

    def __init__(self, target: LoadedModel, draft: Worker | None = None, **settings: Any) -> None:
        """`draft`: the worker of the draft's lane. `settings`: see `RigSettings`."""
        self.settings = RigSettings(**settings)
        self.journal: list[tuple[str, str, str]] = []
        self.pieces: dict[str, list[Output | SSDError]] = {}
        self.records: list[RoundRecord] = []
        self.clock = ManualClock()
        self.blocks = BlockManager(self.settings.num_blocks, self.settings.block_size)
        self.limits = Limits(
            min(self.settings.context, self.blocks.num_blocks * self.blocks.block_size),
            target.config.vocab_size,
        )
        self._model = target
        self._target_lane = TargetLane(self._start_target, self.settings.target_pauses)
        self._draft_worker = draft
        self.draft = self._lane("draft", draft)
        self.speculator = self._speculator(has_draft=draft is not None)
        self._in_use = Replaceable(self.speculator, lambda sequence: None)
        self.core = self._core()

    def submit(self, request: Request) -> TokenSequence:
        """Hand a request to the core, as `Engine` does; raises what `prepare` raises."""
        sequence, end = self.prepare(request)
        heard = self.pieces.setdefault(request.id, [])

        def listen(piece: Output | SSDError) -> None:
            heard.append(piece)
            self.journal.append(("listener", "heard", request.id))

        self.core.submit(LiveRequest(sequence, end, listen, "test", 0, self.clock()))
        return sequence

    def prepare(self, request: Request) -> Prepared:
        """Check a request as `submit` does, and do nothing with it."""
        return prepare(request, self._model.tokenizer, self.limits)

    def replace(self, draft: Worker | None) -> None:
        """Between two rounds: another draft, on a lane of its own; the old one's lane is closed."""
        if self.draft_lane is not None:
            self.draft_lane.close()
        self._draft_worker, self.draft = draft, self._lane("draft", draft)
        self.speculator = self._speculator(has_draft=draft is not None)
        self._in_use.use(self.speculator, lambda sequence: None)

    async def run(self, most: int = 2000) -> None:
        """Rounds until nothing is left to do; the books of the blocks are checked after each."""
        for _ in range(most):
            if self.core.scheduler.is_idle:
                return
            await self.core.run_round()
            self.check_blocks()
        raise AssertionError(f"not finished after {most} rounds")

    async def idle(self, most: int = 10_000) -> None:
        """Wait, while the core runs, until nothing is left to do."""
        for _ in range(most):
            if self.core.scheduler.is_idle:
                return
            await asyncio.sleep(0)
        raise AssertionError("the core is still busy")

    async def answers(self, *requests: Request) -> list[Answer]:
        """Submit the requests together and run them to their ends."""
        for request in requests:
            self.submit(request)
        await self.run()
        return [self.answer(request.id) for request in requests]

    def answer(self, request_id: str) -> Answer:
        """What the listener heard, as one answer; raises the error if there was one."""
        pieces = self.pieces[request_id]
        errors = [piece for piece in pieces if not isinstance(piece, Output)]
        if errors:
            raise errors[0]
        return answer_of([piece for piece in pieces if isinstance(piece, Output)])

    def check_blocks(self) -> None:
        """Every block is free, cached or in a table of a sequence that is here; the draft's likewise."""
        scheduler = self.core.scheduler
        scheduler.blocks.check([sequence.table for sequence in (*scheduler.running, *scheduler.waiting)])
        assert self.core.num_violations == 0
        getattr(self._draft_worker, "check", lambda: None)()

    def _lane(self, name: str, worker: Worker | None) -> ScriptedLane:
        return ScriptedLane(name, worker=worker, automatic=self.settings.automatic, journal=self.journal)

    def _start_target(self) -> ScriptedLane:
        blocks, model = self.blocks, self._model
        self.kv = model.decoder.new_kv(blocks.num_blocks, blocks.block_size, self.settings.kv_dtype)
        worker = TargetWorker(model.decoder, self.kv, self.settings.sampler or PlainSampler())
        swapping = SwappingWorker(worker, self.kv, HOST)
        self.target = self._lane("target", self.settings.around(swapping))
        return self.target

    def _core(self) -> EngineCore:
        return EngineCore(
            target=self._target_lane,
            new_blocks=lambda: BlockManager(self.settings.num_blocks, self.settings.block_size),
            scheduler=Scheduler(
                self.blocks,
                max_batch_size=self.settings.max_batch_size,
                max_batch_tokens=self.settings.max_batch_tokens,
                order=self.settings.order,
                on_preempt=self._in_use.forget,
                preemption=self._preemption(),
                enable_prefix_caching=self.settings.enable_prefix_caching,
            ),
            speculator=self._in_use,
            clock=self.clock,
            max_queue=self.settings.max_queue,
            on_round=self.records.append,
        )

    def _preemption(self) -> Preemption:
        swap, tokens = None, self.settings.swap_tokens
        if tokens is not None:
            swap = HostSwap(
                self._target_lane.submit,
                block_size=self.kv.block_size,
                block_bytes=self.kv.block_size,
                capacity=tokens,
            )
        codec = self.settings.history_codec
        return Preemption(swap, history_codecs()[codec] if codec != "none" else None)

    def _speculator(self, *, has_draft: bool) -> Speculator:
        chosen, memories = self.settings, Memories()
        start = chosen.start_draft or ((lambda: self.draft) if has_draft else None)
        lane = self.draft_lane = None
        if start is not None:
            lane = DraftLane(start, name="scripted", patience=lambda: chosen.patience, clock=self.clock)
            self.draft_lane = lane
        drafting = DraftSource(lane, self.limits.context) if lane else None
        named: dict[str, Source | None] = {"draft": drafting, "shadow": ShadowSource(memories.recall)}
        sources = [named[source] if isinstance(source, str) else source for source in chosen.fallback]
        return Speculator(
            draft=lane,
            drafting=drafting,
            fallback=[source for source in sources if source is not None],
            lookups=chosen.lookups,
            memories=memories,
            modes=Modes(chosen.controller or FixedMode(RowMode(chosen.mode)), has_draft=lane is not None),
            budget=WholeBudget(chosen.budget, chosen.length),
            length=chosen.length,
            max_context=self.limits.context,
            clock=self.clock,
        )


async def settle() -> None:
    """Let every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)

"""Which draft `engine.draft_model` means, and what serves it on the draft's lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from ssd_runtime.capacity import new_kv
from ssd_runtime.clock import Clock
from ssd_runtime.device.lane import Worker
from ssd_runtime.errors import ModelError
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.memory.blocks import BlockManager
from ssd_runtime.memory.prefix import PrefixStats
from ssd_runtime.settings.schema import Settings
from ssd_runtime.speculation.drafting import DraftWorker
from ssd_runtime.speculation.lines import READ_CHUNK
from ssd_runtime.speculation.model_draft import DecoderDraft, DraftModel
from ssd_runtime.speculation.proposing import ProposerWorker

if TYPE_CHECKING:
    from ssd_runtime.device.transfer import Transfer
    from ssd_runtime.models.loading import LoadedModel

NO_DRAFT = "none"
SELF = "self"
DRAFT_BLOCK_SIZE = 8
SPARE_CANDIDATES = 1
"""One candidate more than the budget is ranked, since the sent token may be excluded."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A draft ready for its lane. max_context: tokens beyond which it does not propose.

    new_worker: another worker with nothing read, from what is loaded already; for a fresh lane.
    prefix_stats: what its prefix cache found, over all workers.
    reserve: takes the memory that its passes need; on the thread that makes them.
    """

    name: str
    worker: Worker
    new_worker: Callable[[], Worker]
    max_context: int
    weight_bytes: int = 0
    prefix_stats: PrefixStats = field(default_factory=PrefixStats)
    reserve: Callable[[], None] = lambda: None


def make_draft(
    settings: Settings,
    registries: Registries,
    target: LoadedModel,
    load: Callable[[str, str], LoadedModel],
    clock: Clock,
    transfer: Transfer,
) -> Draft | None:
    """The draft that the settings name; None for `none`.

    `load(name, quantizer)` loads a model, for the lane that `transfer` belongs to. Raises `ModelError`
    for a draft whose vocabulary differs.
    """
    from ssd_runtime.models.loading import place_model

    engine = settings.engine
    name, prefix_stats = engine.draft_model, PrefixStats()
    if name == NO_DRAFT:
        return None
    if name in registries.proposers.names():

        def proposing() -> Worker:
            return ProposerWorker(registries.proposers.get(name)(), target.config.vocab_size)

        return Draft(name, proposing(), proposing, settings.scheduler.max_tokens)
    if name in registries.draft_models.names():
        new_model: Callable[[], DraftModel] = partial(
            registries.draft_models.get(name), target=place_model(target, transfer)
        )
    else:
        loaded = load(engine.model if name == SELF else name, engine.draft_quantization)
        if name != SELF:
            check_vocabularies(target, loaded)
        kept = prefix_stats if engine.enable_prefix_caching else None
        new_model = partial(decoder_draft, loaded, settings, target.config.vocab_size, kept)

    def working(model: DraftModel) -> Worker:
        policy = registries.cache_policies.get(engine.cache_policy.name)(**engine.cache_policy.options)
        return DraftWorker(
            model,
            registries.samplers.get(engine.sampler.name)(**engine.sampler.options),
            policy.allot,
            vocab_size=target.config.vocab_size,
            num_candidates=engine.branch_budget + SPARE_CANDIDATES,
            clock=clock,
        )

    model = new_model()
    return Draft(
        name,
        working(model),
        lambda: working(new_model()),
        model.max_context,
        model.weight_bytes,
        prefix_stats,
        partial(_reserve, model, settings),
    )


def _reserve(model: DraftModel, settings: Settings) -> None:
    """Room for a step of the largest build: every row reads a chunk, and has all its lines.

    But for no more tokens than the target's rounds have: so many rows seldom have drafts at once.
    """
    if isinstance(model, DecoderDraft):
        lines, most = settings.engine.branch_budget + 1, settings.scheduler.max_batch_tokens
        rows = settings.engine.max_batch_size
        model.decoder.reserve(min(rows * (READ_CHUNK + lines), most), min(rows * lines, most))


def decoder_draft(
    loaded: LoadedModel, settings: Settings, vocab_size: int, prefix_stats: PrefixStats | None
) -> DecoderDraft:
    """A loaded model as a draft, with KV for every running row's trunk and branches.

    So whoever the target has admitted has room in the draft too: what the prefix cache keeps is no obstacle.
    It keeps no more tokens than the target's can: the room is for the worst case, and seldom touched.

    On the native path in half precision, which is half the memory; as many drafts are accepted (of those
    of SmolLM2-135M with its own blocks 0.912, with float32 0.911).
    """
    import torch

    dtype = torch.float16 if loaded.decoder.can_draw else torch.float32
    engine = settings.engine
    context = min(settings.scheduler.max_tokens, loaded.config.max_position) + engine.speculative_length
    branch = engine.speculative_length + 2 * DRAFT_BLOCK_SIZE
    tokens = engine.max_batch_size * (context + DRAFT_BLOCK_SIZE + engine.branch_budget * branch)
    num_blocks = -(-tokens // DRAFT_BLOCK_SIZE)
    lower = "engine.max_batch_size, scheduler.max_tokens or engine.branch_budget"
    kv = new_kv(loaded.decoder, num_blocks, DRAFT_BLOCK_SIZE, dtype, whose="draft", lower=lower)
    blocks = BlockManager(num_blocks, DRAFT_BLOCK_SIZE, settings.kv_cache_tokens // DRAFT_BLOCK_SIZE)
    return DecoderDraft(loaded.decoder, kv, blocks, vocab_size, prefix_stats)


def check_vocabularies(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft whose token ids mean other text than the target's; padding at the end is fine.

    Raises `ModelError` with both sizes and the first differing token.
    """
    ours, theirs = target.tokenizer.tokens(), draft.tokenizer.tokens()
    difference = _first_difference(ours, theirs)
    if difference is None:
        return
    raise ModelError(
        f"draft model {draft.name!r} has another vocabulary than {target.name!r}: {len(theirs)} and "
        f"{len(ours)} tokens, and token {difference} is {theirs[difference]!r} instead of "
        f"{ours[difference]!r}; use a draft of the same family, or draft_model: self, ngram or none"
    )


def _first_difference(ours: Sequence[str], theirs: Sequence[str]) -> int | None:
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a != b:
            return i
    return None

"""What exists here: whether every part that the settings name can be provided. Loads no torch."""

from __future__ import annotations

from ssd_runtime.drafts import NO_DRAFT, SELF
from ssd_runtime.errors import ModelError, NotAvailableError
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.settings.available import check_available
from ssd_runtime.settings.load import Loaded
from ssd_runtime.speculation.fallback import DraftSource, ShadowSource

KV_DTYPES = {"float32": "float32", "fp16": "float16"}
"""Number formats of the KV cache, and torch's names of them."""


def check_parts(loaded: Loaded, registries: Registries) -> None:
    """Raise `NotAvailableError` for each name in the settings that nothing here provides."""
    proposers = registries.proposers.names()
    drafts = (SELF, NO_DRAFT, *proposers, *registries.draft_models.names())
    check_available(
        loaded,
        {
            "engine.draft_model": drafts,
            "engine.fallback": (ShadowSource.name, DraftSource.name, *proposers),
            "engine.sampler": registries.samplers.names(),
            "engine.cache_policy": registries.cache_policies.names(),
            "engine.quantization": registries.quantizers.names(),
            "engine.draft_quantization": registries.quantizers.names(),
            "engine.kv_cache_dtype": KV_DTYPES,
            "scheduler.order": registries.orders.names(),
            "scheduler.preempt_mode": ("recompute",),
        },
        is_draft=is_model,
    )
    _check_quantization(loaded)


def is_model(name: str) -> bool:
    """Whether `name` is, or may be, a model that can be loaded."""
    from ssd_runtime.models.loading import resolve

    try:
        resolve(name)
    except ModelError:
        return False
    return True


def _check_quantization(loaded: Loaded) -> None:
    chosen = loaded.settings.engine.quantization
    if chosen.small != chosen.large:
        raise NotAvailableError(
            f"{loaded.where('engine.quantization')}: two formats ({chosen.small}, {chosen.large}) "
            "switched by batch size are not available; available: one format for every batch"
        )

"""Whether what the settings name exists here: the check at start, after plugins are loaded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from ssd_runtime.errors import NotAvailableError
from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.schema import Settings


def check_available(
    loaded: Loaded,
    available: Mapping[str, Collection[str]],
    is_draft: Callable[[str], bool] = lambda name: False,
) -> None:
    """Raise NotAvailableError, one line for each name in the settings that nothing provides.

    `available` gives the names that exist for a dotted key; keys that it lacks are not checked.
    `is_draft` may accept further values of `engine.draft_model`: models by name, folder or hub id.
    """
    missing = [
        f"{loaded.where(key)}: {name!r} is not available; "
        f"available: {', '.join(sorted(available[key])) or 'none'}"
        for key, name in _chosen(loaded.settings)
        if key in available and name not in available[key]
        if not (key == "engine.draft_model" and is_draft(name))
    ]
    if missing:
        raise NotAvailableError("\n".join(missing))


def _chosen(settings: Settings) -> Iterator[tuple[str, str]]:
    engine, scheduler = settings.engine, settings.scheduler
    yield "engine.draft_model", engine.draft_model
    yield from (("engine.fallback", part.name) for part in engine.fallback)
    yield "engine.sampler", engine.sampler.name
    yield "engine.cache_policy", engine.cache_policy.name
    yield from (("engine.quantization", name) for name in engine.quantization.names)
    yield "engine.draft_quantization", engine.draft_quantization
    yield "engine.kv_cache_dtype", engine.kv_cache_dtype
    yield "engine.history_codec", engine.history_codec
    yield "scheduler.policy", scheduler.policy.value
    yield "scheduler.order", scheduler.order

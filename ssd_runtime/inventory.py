"""What exists here: whether every part that the settings name can be provided. Loads torch only for a GPU."""

from __future__ import annotations

from typing import Any

import structlog

from ssd_kernels.cpu.library import choice
from ssd_runtime.device.placement import Places, check_place, place
from ssd_runtime.drafts import NO_DRAFT, SELF
from ssd_runtime.errors import ConfigError, ModelError, NotAvailableError
from ssd_runtime.hooks.registry import Registries, Registry
from ssd_runtime.memory.history import history_codecs
from ssd_runtime.settings.available import check_available
from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.schema import NamedPart
from ssd_runtime.settings.show import flow
from ssd_runtime.speculation.fallback import DraftSource, ShadowSource

log = structlog.get_logger(__name__)

KV_DTYPES = {"float32": "float32", "fp16": "float16", "fp8": "float8_e4m3fn", "int8": "int8"}
"""Number formats of the KV cache, and torch's names of them."""

FALLBACK = "engine.fallback"


def check_parts(loaded: Loaded, registries: Registries) -> None:
    """Raise `NotAvailableError` for each name in the settings that nothing here provides.

    Raises `ConfigError` for devices and CPU kernels that are not there, and for wrong options of
    the sampler or the cache policy.
    """
    proposers = registries.proposers.names()
    drafts = (SELF, NO_DRAFT, *proposers, *registries.draft_models.names())
    check_available(
        loaded,
        {
            "engine.draft_model": drafts,
            FALLBACK: (ShadowSource.name, DraftSource.name, *proposers),
            "engine.sampler": registries.samplers.names(),
            "engine.cache_policy": registries.cache_policies.names(),
            "engine.quantization": registries.quantizers.names(),
            "engine.draft_quantization": registries.quantizers.names(),
            "engine.kv_cache_dtype": KV_DTYPES,
            "engine.history_codec": history_codecs(),
            "scheduler.order": registries.orders.names(),
        },
        is_draft=is_model,
    )
    _check_quantization(loaded)
    _check_options(loaded, registries)
    _check_kernels()
    places(loaded)


def places(loaded: Loaded) -> Places:
    """The devices and cores of the two roles; raises `ConfigError` for devices that are not there."""
    placement = loaded.settings.placement
    for role, value in placement:
        if not isinstance(value, str):
            raise NotAvailableError(
                f"{loaded.where(f'placement.{role}')}: {flow(value)} is not available; "
                "available: auto, cpu:N, cpu:N-M, cuda:N"
            )
        try:
            check_place(value)
        except ConfigError as error:
            raise ConfigError(f"{loaded.where(f'placement.{role}')}: {error}") from error
    return place(str(placement.target), str(placement.draft))


def log_kernels() -> None:
    """Say which code runs passes on the CPU; not on the stdout of a program that set up no log."""
    kernels = choice()
    because = {"reason": kernels.reason} if kernels.reason else {}
    if structlog.is_configured():
        log.info("decoder", cpu_kernels=kernels.name, **because)


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


def _check_kernels() -> None:
    kernels = choice()
    if kernels.is_wrong:
        raise ConfigError(kernels.reason)


def _check_options(loaded: Loaded, registries: Registries) -> None:
    """Make the parts that were given options: whoever takes them knows which are right."""
    engine = loaded.settings.engine
    parts: list[tuple[str, NamedPart, Registry[Any]]] = [
        ("engine.sampler", engine.sampler, registries.samplers),
        ("engine.cache_policy", engine.cache_policy, registries.cache_policies),
    ]
    parts += [(FALLBACK, part, registries.proposers) for part in engine.fallback]
    for key, part, registry in parts:
        try:
            if part.options and key == FALLBACK and part.name in (ShadowSource.name, DraftSource.name):
                raise ConfigError(f"{part.name!r} takes no options; got {flow(part.options)}")
            if part.options:  # a sampler loads torch
                registry.get(part.name)(**part.options)
        except ConfigError as error:
            raise ConfigError(f"{loaded.where(key)}: {error}") from error

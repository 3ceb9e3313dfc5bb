"""The built-in plugins of ssd_runtime; they use only `ssd_runtime.api`.

Factories import late: registering loads no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ssd_runtime.api import hookimpl

if TYPE_CHECKING:
    from ssd_runtime.api import CachePolicy, Order, Proposer, Quantizer, Registry, Sampler


@hookimpl
def ssd_register_proposers(registry: Registry[Proposer]) -> None:
    """Drafts without a model."""
    registry.register("ngram", _late("ssd_plugins.ngram", "NgramProposer"))
    registry.register("suffix", _late("ssd_plugins.suffix", "suffix_proposer"))


@hookimpl
def ssd_register_samplers(registry: Registry[Sampler]) -> None:
    """How tokens are drawn."""
    registry.register("coupled", _late("ssd_plugins.samplers", "CoupledSampler"))
    registry.register("rejection", _late("ssd_plugins.rejection", "RejectionSampler"))


@hookimpl
def ssd_register_cache_policies(registry: Registry[CachePolicy]) -> None:
    """How the branch budget is shared."""
    registry.register("adaptive", _late("ssd_plugins.cache_policies", "Adaptive"))
    registry.register("uniform", _late("ssd_plugins.cache_policies", "Uniform"))
    registry.register("geometric", _late("ssd_plugins.cache_policies", "Geometric"))


@hookimpl
def ssd_register_quantizers(registry: Registry[Quantizer]) -> None:
    """How weights are stored."""
    registry.register("none", _late("ssd_runtime.api", "Float32Quantizer"))
    registry.register("bf16", _late("ssd_plugins.quantizers", "BFloat16Quantizer"))
    registry.register("int8", _late("ssd_plugins.quantizers", "Int8Quantizer"))
    registry.register("int4", _late("ssd_plugins.quantizers", "Int4Quantizer"))


@hookimpl
def ssd_register_orders(registry: Registry[Order]) -> None:
    """Who is served next."""
    registry.register("fcfs", _late("ssd_plugins.orders", "FirstComeFirstServed"))
    registry.register("priority", _late("ssd_plugins.orders", "by_priority"))


def _late(module: str, name: str) -> Callable[..., Any]:
    """A factory that imports `module` when it is first called."""

    def make(**options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(**options)

    return make

"""The built-in plugins of ssd_runtime; they use only `ssd_runtime.api`.

Factories import late: registering loads no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ssd_runtime.api import hookimpl

if TYPE_CHECKING:
    from ssd_runtime.api import CachePolicy, Order, Quantizer, Registry, Sampler


@hookimpl
def ssd_register_samplers(registry: Registry[Sampler]) -> None:
    """How tokens are drawn."""
    registry.register("coupled", _late("samplers", "CoupledSampler"))


@hookimpl
def ssd_register_cache_policies(registry: Registry[CachePolicy]) -> None:
    """How the branch budget is shared."""
    registry.register("uniform", _late("cache_policies", "Uniform"))
    registry.register("geometric", _late("cache_policies", "Geometric"))


@hookimpl
def ssd_register_quantizers(registry: Registry[Quantizer]) -> None:
    """How weights are stored."""
    registry.register("none", _late("quantizers", "Float32"))
    registry.register("bf16", _late("quantizers", "BFloat16"))
    registry.register("int8", _late("quantizers", "Int8"))


@hookimpl
def ssd_register_orders(registry: Registry[Order]) -> None:
    """Who is served next."""
    registry.register("fcfs", _late("orders", "first_come_first_served"))


def _late(module: str, name: str) -> Callable[..., Any]:
    """A factory that imports `ssd_plugins.<module>` when it is first called."""

    def make(**options: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(**options)

    return make

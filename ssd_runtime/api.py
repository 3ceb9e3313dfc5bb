"""What plugins may use: the hook marker, the registries, the kinds of parts, the values they get.

Everything else in `ssd_runtime` may change without notice. Importing this loads no torch; the names
in `_HEAVY` do, when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ssd_runtime.errors import NotAvailableError, PluginError
from ssd_runtime.hooks.kinds import CachePolicy, Observer, Order, Proposer, Sampler, Verifier, Waiting, Warper
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.messages import Draw, Verdict
from ssd_runtime.sampling import fanout
from ssd_runtime.stats import RoundRecord
from ssd_runtime.types import Request, SamplingParams

if TYPE_CHECKING:
    from ssd_kernels.cpu.coded import CodedWeight
    from ssd_kernels.cpu.matrix import Format, pack_native, pack_native_codes
    from ssd_runtime.models.linear import CodeQuantizer, Float32Quantizer, Quantizer, WeightMatrix
    from ssd_runtime.sampling.chance import draft_by_chance, draw_by_chance, verify_by_chance
    from ssd_runtime.sampling.draw import DraftStep, draft_steps, draw_tokens
    from ssd_runtime.sampling.odds import Odds
    from ssd_runtime.speculation.model_draft import DraftModel, DraftState, Feed

_HEAVY = {
    "CodeQuantizer": "ssd_runtime.models.linear",
    "CodedWeight": "ssd_kernels.cpu.coded",
    "DraftModel": "ssd_runtime.speculation.model_draft",
    "DraftState": "ssd_runtime.speculation.model_draft",
    "DraftStep": "ssd_runtime.sampling.draw",
    "Feed": "ssd_runtime.speculation.model_draft",
    "Float32Quantizer": "ssd_runtime.models.linear",
    "Format": "ssd_kernels.cpu.matrix",
    "Odds": "ssd_runtime.sampling.odds",
    "Quantizer": "ssd_runtime.models.linear",
    "WeightMatrix": "ssd_runtime.models.linear",
    "draft_by_chance": "ssd_runtime.sampling.chance",
    "draft_steps": "ssd_runtime.sampling.draw",
    "draw_by_chance": "ssd_runtime.sampling.chance",
    "draw_tokens": "ssd_runtime.sampling.draw",
    "pack_native": "ssd_kernels.cpu.matrix",
    "pack_native_codes": "ssd_kernels.cpu.matrix",
    "verify_by_chance": "ssd_runtime.sampling.chance",
}

__all__ = [
    "CachePolicy",
    "CodeQuantizer",
    "CodedWeight",
    "DraftModel",
    "DraftState",
    "DraftStep",
    "Draw",
    "Feed",
    "Float32Quantizer",
    "Format",
    "NotAvailableError",
    "Observer",
    "Odds",
    "Order",
    "PluginError",
    "Proposer",
    "Quantizer",
    "Registry",
    "Request",
    "RoundRecord",
    "Sampler",
    "SamplingParams",
    "Verdict",
    "Verifier",
    "Waiting",
    "Warper",
    "WeightMatrix",
    "draft_by_chance",
    "draft_steps",
    "draw_by_chance",
    "draw_tokens",
    "fanout",
    "hookimpl",
    "pack_native",
    "pack_native_codes",
    "verify_by_chance",
]


def __getattr__(name: str) -> Any:
    if name in _HEAVY:
        return getattr(importlib.import_module(_HEAVY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

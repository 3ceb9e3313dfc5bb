"""ssd_runtime: speculative speculative decoding as a runtime. Importing it loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ssd_runtime.errors import (
    ComputeError,
    ConfigError,
    ContextLengthError,
    EngineClosedError,
    EngineError,
    ModelError,
    NotAvailableError,
    PluginError,
    QueueFullError,
    RequestError,
    SSDError,
)
from ssd_runtime.types import (
    Answer,
    FinishReason,
    Message,
    Mode,
    Output,
    Request,
    SamplingParams,
    SpeculationParams,
    SpeculationStats,
    Timing,
)

if TYPE_CHECKING:
    from ssd_runtime.app import Engine
    from ssd_runtime.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Answer",
    "ComputeError",
    "ConfigError",
    "ContextLengthError",
    "Engine",
    "EngineClosedError",
    "EngineError",
    "FinishReason",
    "Message",
    "Mode",
    "ModelError",
    "NotAvailableError",
    "Output",
    "PluginError",
    "QueueFullError",
    "Request",
    "RequestError",
    "SSDError",
    "SamplingParams",
    "SpeculationParams",
    "SpeculationStats",
    "Timing",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """`Engine` and `LLM` load torch, so they are imported when somebody asks for them."""
    if name == "Engine":
        from ssd_runtime.app import Engine

        return Engine
    if name == "LLM":
        from ssd_runtime.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

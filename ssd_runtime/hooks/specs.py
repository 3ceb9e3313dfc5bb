"""Every hook, with its whole contract.

Common to all: a hook runs once, at start-up, on the thread that starts the engine and before any
model is loaded; and once at each reload, with a registry of its own. It may block, but should not:
importing heavy libraries belongs into the factories, which run when a part is needed. The result is
ignored. What it raises stops the start with an error that names the plugin, and nothing of that
plugin stays registered. Built-ins come first, then installed entry points by name, then `plugins:`
of the configuration in the order given; a name that is taken is an error, so no plugin can replace
a part unnoticed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from ssd_runtime.hooks.kinds import CachePolicy, Observer, Order, Proposer, Sampler, Warper
    from ssd_runtime.hooks.registry import Registry
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.speculation.model_draft import DraftModel

PROJECT = "ssd_runtime"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def ssd_register_draft_models(registry: Registry[DraftModel]) -> None:
    """Register draft models, for `engine.draft_model`.

    The factory is called once per engine as `factory(target=model)` with the loaded target, a
    `LoadedModel`. What it returns lives on the draft's lane; its five verbs are described in
    `speculation/model_draft.py`.
    """


@hookspec
def ssd_register_proposers(registry: Registry[Proposer]) -> None:
    """Register proposers, for `engine.draft_model` and `engine.fallback`.

    The factory is called once per engine and place, in `engine.fallback` with the options of the YAML
    mapping as keyword arguments. For options that it does not take it raises TypeError or ValueError,
    which stops the start.
    """


@hookspec
def ssd_register_samplers(registry: Registry[Sampler]) -> None:
    """Register samplers, for `engine.sampler`.

    The factory is called without arguments, once per engine.
    """


@hookspec
def ssd_register_warpers(registry: Registry[Warper]) -> None:
    """Register warpers, for the requests' field `warpers`.

    The factory is called with the options that a request gives as keyword arguments, a few times per
    request, on any thread. For options that it does not take it raises TypeError or ValueError, which
    refuses the request.
    """


@hookspec
def ssd_register_cache_policies(registry: Registry[CachePolicy]) -> None:
    """Register cache policies, for `engine.cache_policy`.

    The factory is called once per engine with the options of the YAML mapping as keyword arguments.
    For options that it does not take it raises TypeError or ValueError, which stops the start.
    """


@hookspec
def ssd_register_quantizers(registry: Registry[Quantizer]) -> None:
    """Register weight formats, for `engine.quantization` and `engine.draft_quantization`.

    The factory is called without arguments, once per model that is loaded.
    """


@hookspec
def ssd_register_orders(registry: Registry[Order]) -> None:
    """Register orders of service, for `scheduler.order`.

    The factory is called without arguments, once per engine, and returns the sort key.
    """


@hookspec
def ssd_register_observers(registry: Registry[Observer]) -> None:
    """Register observers. Every registered observer is made, once per engine, and hears all rounds."""

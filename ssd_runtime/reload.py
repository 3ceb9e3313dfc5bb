"""A running engine follows a changed configuration, as far as it can without dropping a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace

from ssd_runtime.build import available_parts, enough_memory
from ssd_runtime.engine.prepare import Limits
from ssd_runtime.hooks.registry import Registries
from ssd_runtime.parts import Parts
from ssd_runtime.settings.difference import SPECULATING, Change, Difference, difference, followed
from ssd_runtime.settings.load import Loaded
from ssd_runtime.settings.show import flow
from ssd_runtime.speculations import Speculation

SAMPLER = frozenset({"engine.sampler"})
OBSERVERS = "plugins (observers)"


def reload(
    parts: Parts, old: Loaded, new: Loaded, *, plugins: Sequence[object], call: Callable[..., None]
) -> tuple[Loaded, Difference]:
    """Let `parts`, which are as `old` says, follow `new`: what they are as then, and what is different.

    Blocks while models load and until a round ends; run it on a worker thread, one at a time. `call` runs a
    function on the engine's loop. Raises what the start would: `ConfigError`, `ModelError` or `PluginError`;
    and `EngineClosedError`. Then nothing has changed.
    """
    registries = available_parts(new, plugins)
    now, found = followed(old, new), difference(old.settings, new.settings)
    stay = (*found.needs_restart, *_observers(parts, registries))
    if found.changed:
        limits = _limits(parts.limits, now, registries, found)
        speculation = _speculation(parts, now, registries) if found.touches(SPECULATING) else None
        _exchange(parts, limits, speculation, call)
    return now, replace(found, needs_restart=stay)


def _limits(limits: Limits, now: Loaded, registries: Registries, found: Difference) -> Limits:
    """What holds for requests that begin from now on."""
    chosen = now.settings.engine.sampler
    changed = found.touches(SAMPLER)
    sampler = registries.samplers.get(chosen.name)(**chosen.options) if changed else limits.sampler
    return replace(limits, sampler=sampler, warpers=registries.warpers)


def _speculation(parts: Parts, now: Loaded, registries: Registries) -> Speculation:
    with enough_memory():
        return parts.maker.make(now.settings, registries, parts.limits.context)


def _exchange(
    parts: Parts, limits: Limits, speculation: Speculation | None, call: Callable[..., None]
) -> None:
    """Between two rounds; then end what is in use no more."""
    before, done = parts.speculation, Future[None]()

    def change() -> None:
        parts.limits = limits
        if speculation is not None:
            speculation.succeed(before)
            parts.speculator.use(speculation.speculator, speculation.sources.remember)
            parts.speculation = speculation

    try:
        call(parts.core.between_rounds, change, done)
        done.result()
    except BaseException:
        if speculation is not None:
            _end(speculation)
        raise
    if speculation is not None:
        _end(before)


def _end(speculation: Speculation) -> None:
    speculation.close()
    speculation.join()


def _observers(parts: Parts, registries: Registries) -> Iterator[Change]:
    """Who would hear of rounds now."""
    names = registries.observers.names()
    if names != parts.observers:
        yield Change(OBSERVERS, flow(parts.observers), flow(names))

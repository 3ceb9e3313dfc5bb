"""`ssd-run check`: what would happen with this configuration, without loading a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ssd_runtime.capacity import TARGET_LOWER, require_host_memory
from ssd_runtime.cli import examples
from ssd_runtime.cli.command import OptionsCommand
from ssd_runtime.cli.options import ConfigOption, ModeOption, SetOption, load
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.settings.schema import Settings
from ssd_runtime.settings.show import flow
from ssd_runtime.types import Mode

if TYPE_CHECKING:
    from ssd_runtime.device.placement import Places
    from ssd_runtime.hooks.registry import Registries
    from ssd_runtime.models.config import DecoderConfig
    from ssd_runtime.models.loading import ModelSource

KV_BYTES = {"float32": 4, "fp16": 2, "fp8": 1, "int8": 1}
KV_SCALE_BYTES = {"float32": 0, "fp16": 0, "fp8": 4, "int8": 4}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(cls=OptionsCommand, epilog=examples.epilog(examples.CHECK))(check)


def check(config: ConfigOption = None, overrides: SetOption = None, mode: ModeOption = None) -> None:
    """Say what would happen: models, formats, context, placement. Status 2 if it would not start."""
    from ssd_runtime.inventory import check_parts, places

    loaded = load(config, overrides, mode)
    manager = PluginManager()
    manager.load(loaded.settings.plugins)
    check_parts(loaded, manager.registries)
    placement = places(loaded)
    on_host = placement.target_device == "cpu"
    rows = [
        ("configuration", str(config or "built in")),
        ("plugins", ", ".join(manager.names())),
        *_rows(loaded.settings, manager.registries, on_host=on_host),
        ("placement", _placement(placement)),
        ("cpu kernels", _kernels()),
    ]
    for name, text in rows:
        typer.echo(f"{name:14} {text}")


def _rows(settings: Settings, registries: Registries, *, on_host: bool) -> Iterator[tuple[str, str]]:
    from ssd_runtime.models.loading import resolve

    engine = settings.engine
    source = resolve(engine.model)
    shape = _shape(source)
    yield "target", _found(source)
    if shape is not None:
        yield "", f"{shape.layers} layers, width {shape.hidden}, vocabulary {shape.vocab_size}"
    yield "weights", _weights(engine.quantization.small)
    yield "draft", _draft(settings, registries)
    yield "mode", settings.scheduler.policy.value
    yield "context", _context(settings, shape)
    yield "kv cache", _kv_cache(settings, shape, on_host=on_host)


def _found(source: ModelSource) -> str:
    if source.path is None:
        return f"{source.name}: from the hub, or its cache on this machine"
    files = source.path.glob("*.safetensors") if source.path.is_dir() else [source.path]
    megabytes = sum(file.stat().st_size for file in files) / 1e6
    return f"{source.name}: {source.path} ({source.kind.name.lower()}, {megabytes:.0f} MB)"


def _shape(source: ModelSource) -> DecoderConfig | None:
    """What the model's header says; None for a model that may have to be fetched first."""
    if source.path is None:
        return None
    if source.path.is_dir():
        from ssd_runtime.models.config import from_hf

        return from_hf(json.loads(Path(source.path, "config.json").read_text(encoding="utf-8")))
    from ssd_runtime.models.gguf import GGUFFile

    return GGUFFile(source.path).config()


def _draft(settings: Settings, registries: Registries) -> str:
    engine = settings.engine
    if settings.scheduler.policy is Mode.AUTOREGRESSIVE or engine.draft_model == "none":
        return "none"
    draft = f"{engine.draft_model}, up to {engine.speculative_length} tokens a round"
    if engine.draft_model in registries.proposers.names():
        return f"{draft}, without a model"
    return f"{draft}, {_weights(engine.draft_quantization)} weights, outcomes {flow(engine.cache_policy)}"


def _weights(quantization: str) -> str:
    return "float32" if quantization == "none" else quantization


def _placement(places: Places) -> str:
    target = _lane(places.target_device, places.target)
    return f"target on {target}, draft on {_lane(places.draft_device, places.draft)}"


def _kernels() -> str:
    from ssd_kernels.cpu.library import choice

    kernels = choice()
    return f"{kernels.name}: {kernels.reason}" if kernels.reason else kernels.name


def _lane(device: str, cores: frozenset[int]) -> str:
    return _cores(cores) if device == "cpu" else f"{device}, fed by {_cores(cores)}"


def _cores(cores: frozenset[int]) -> str:
    return f"core{'s' * (len(cores) > 1)} {', '.join(map(str, sorted(cores)))}"


def _context(settings: Settings, shape: DecoderConfig | None) -> str:
    wanted = settings.scheduler.max_tokens
    if shape is None or shape.max_position >= wanted:
        return f"{wanted} tokens a request"
    return f"{shape.max_position} tokens a request, the model's own limit (scheduler.max_tokens: {wanted})"


def _kv_cache(settings: Settings, shape: DecoderConfig | None, *, on_host: bool) -> str:
    dtype = settings.engine.kv_cache_dtype
    text = f"{settings.kv_cache_tokens} tokens, {dtype}"
    if shape is None:
        return text
    entry = 2 * (shape.head_dim * KV_BYTES[dtype] + KV_SCALE_BYTES[dtype])
    size = settings.kv_cache_tokens * shape.layers * shape.kv_heads * entry
    if on_host:
        require_host_memory(size, settings.kv_cache_tokens, whose="target", lower=TARGET_LOWER)
    return f"{text}, {size / 1e6:.0f} MB"

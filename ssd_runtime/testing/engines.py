"""Whole engines on toy models: real threads and lanes, tiny weights, drafts that a test may bring."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ssd_runtime.app import Engine
from ssd_runtime.build import Progress
from ssd_runtime.device.cores import available_cores
from ssd_runtime.hooks.kinds import Proposer
from ssd_runtime.hooks.registry import Registry
from ssd_runtime.hooks.specs import hookimpl
from ssd_runtime.models.linear import Quantizer
from ssd_runtime.models.loading import LoadedModel
from ssd_runtime.settings.load import load_settings
from ssd_runtime.speculation.model_draft import DraftModel
from ssd_runtime.telemetry.trace import RecordSink
from ssd_runtime.testing.scripted import VOCAB
from ssd_runtime.testing.toy import toy_decoder


def toy_engine(
    *overrides: str,
    seed: int = 1,
    draft: DraftModel | None = None,
    proposer: Proposer | None = None,
    plugins: Sequence[object] = (),
    models: dict[str, LoadedModel] | None = None,
    scale: float = 0.3,
    trace: Path | RecordSink | None = None,
    config: Path | None = None,
) -> Engine:
    """An engine on the toy model `seed`; `overrides` are settings, as `key=value`.

    Its draft is `draft` (called `scripted`), or what `engine.draft_model` says: `toy/5` is the toy
    model of seed 5. `proposer` can be named as `scripted-proposer`. `models` puts models of one's
    own under their names. config: a file with settings, less weighty than `overrides`. The environment
    is not looked at. Each lane has one core, since products this small are only slowed down by more threads.
    """
    cores = sorted(available_cores())
    given = ["engine.model=toy/target", "engine.fallback=[]", "engine.draft_quantization=none"]
    given += [f"placement.target=cpu:{cores[0]}", f"placement.draft=cpu:{cores[-1]}"]
    given += ["engine.draft_model=scripted"] if draft else []
    known = {"toy/target": toy_decoder(seed, vocab=VOCAB, scale=scale)} | (models or {})

    def load(name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
        if name not in known:
            known[name] = toy_decoder(int(name.removeprefix("toy/")), VOCAB, scale=scale, quantizer=quantizer)
        return known[name]

    loaded = load_settings(config, [*given, *overrides], environ={})
    return Engine(loaded, load_model=load, plugins=[ScriptedPlugin(draft, proposer), *plugins], trace=trace)


class ScriptedPlugin:
    """A plugin that provides `draft` as `scripted` and `proposer` as `scripted-proposer`."""

    def __init__(self, draft: DraftModel | None = None, proposer: Proposer | None = None) -> None:
        self._draft = draft
        self._proposer = proposer

    @hookimpl
    def ssd_register_draft_models(self, registry: Registry[DraftModel]) -> None:
        """Register the draft, which serves one engine."""
        if (draft := self._draft) is not None:
            registry.register("scripted", lambda target: draft)

    @hookimpl
    def ssd_register_proposers(self, registry: Registry[Proposer]) -> None:
        """Register the proposer."""
        if (proposer := self._proposer) is not None:
            registry.register("scripted-proposer", lambda: proposer)

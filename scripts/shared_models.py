"""Models that several engines share, whole and cut off after some of their layers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ssd_runtime.build import LoadModel, Progress, load_configured_model
from ssd_runtime.models.linear import Quantizer
from ssd_runtime.models.loading import LoadedModel

TARGET_FORM = "none"
DRAFTS = ("int8", "int4", "int8:29")


class SharedModels:
    """Loads each model in each form once; a decoder holds weights only, so engines may share it.

    A draft's form is a weight format, alone or with a number of layers: `int8`, `int8:24`.
    """

    def __init__(self) -> None:
        self._models: dict[str, LoadedModel] = {}

    def loader(self, draft: str) -> LoadModel:
        """For `Engine(load_model=…)`: the target whole, its self-draft in the form `draft`."""
        return partial(self._load, layers_of(draft))

    def weight_bytes(self, form: str) -> int:
        """Bytes of the weights in this form, as allocated."""
        return int(self._models[form].decoder.weight_bytes)

    def _load(self, layers: int | None, name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
        cut = None if quantizer.name == TARGET_FORM else layers
        form = quantizer.name if cut is None else f"{quantizer.name}:{cut}"
        if form not in self._models:
            model = load_configured_model(name, quantizer, progress)
            decoder = model.decoder if cut is None else model.decoder.shallow(cut)
            self._models[form] = replace(model, config=decoder.config, decoder=decoder)
        return self._models[form]


def layers_of(draft: str) -> int | None:
    """The number of layers that a draft's form names, None for all."""
    layers = draft.partition(":")[2]
    return int(layers) if layers else None


def quantization_of(draft: str) -> str:
    """The weight format that a draft's form names."""
    return draft.partition(":")[0]

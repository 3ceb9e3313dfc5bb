"""How long one pass of a draft takes inside an engine, and models that several engines share."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, cast

from ssd_runtime.build import LoadModel, Progress, load_configured_model
from ssd_runtime.clock import monotonic
from ssd_runtime.device.lane import CommandRecord
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Quantizer
from ssd_runtime.models.loading import LoadedModel

TARGET_FORM = "none"
DRAFTS = ("int8", "int4", "int8:29")


class CountedDecoder:
    """A decoder that notes when each of its passes ended, in seconds of the engine's clock."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self.ended: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def forward(self, *args: Any, **options: Any) -> Any:
        """See `Decoder.forward`."""
        logits = self._decoder.forward(*args, **options)
        self.ended.append(monotonic())
        return logits


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

    def passes_ended(self, form: str) -> list[float]:
        """When each pass of the model in this form ended, ascending."""
        return cast(CountedDecoder, self._models[form].decoder).ended

    def _load(self, layers: int | None, name: str, quantizer: Quantizer, progress: Progress) -> LoadedModel:
        cut = None if quantizer.name == TARGET_FORM else layers
        form = quantizer.name if cut is None else f"{quantizer.name}:{cut}"
        if form not in self._models:
            model = load_configured_model(name, quantizer, progress)
            decoder = model.decoder if cut is None else model.decoder.shallow(cut)
            counted = cast(Decoder, CountedDecoder(decoder))
            self._models[form] = replace(model, config=decoder.config, decoder=counted)
        return self._models[form]


def layers_of(draft: str) -> int | None:
    """The number of layers that a draft's form names, None for all."""
    layers = draft.partition(":")[2]
    return int(layers) if layers else None


def quantization_of(draft: str) -> str:
    """The weight format that a draft's form names."""
    return draft.partition(":")[0]


def pass_seconds(commands: Iterable[CommandRecord], ended: Sequence[float]) -> float | None:
    """The median over commands of seconds per pass, sampling and bookkeeping included; None without any."""
    seconds = []
    for command in commands:
        passes = bisect_right(ended, command.finished) - bisect_left(ended, command.started)
        if passes:
            seconds.append((command.finished - command.started) / passes)
    return median(seconds) if seconds else None

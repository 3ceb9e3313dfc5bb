"""From a model's name to a decoder that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ssd_runtime.models.config import DecoderConfig
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, under the name by which the user knows it."""

    config: DecoderConfig
    decoder: Decoder
    tokenizer: Tokenizer
    name: str

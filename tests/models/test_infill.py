"""A suffix becomes a prompt with a hole where the model has tokens for it, and is refused elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from ssd_runtime.engine.prepare import Limits, prepare
from ssd_runtime.errors import RequestError
from ssd_runtime.models.infill import MARKERS
from ssd_runtime.settings.request import parse_request
from ssd_runtime.testing.toy import ToyTokenizer
from ssd_runtime.types import Request, SamplingParams

START = 5


class Infilling(ToyTokenizer):
    """A toy whose last three tokens are markers, and which begins every text with a token of its own."""

    def __init__(self, markers: tuple[str, str, str]) -> None:
        super().__init__(96)
        self._markers = markers

    def tokens(self) -> list[str]:
        """See `Tokenizer`."""
        return [*super().tokens()[:-3], *self._markers]

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`."""
        return [START, *super().encode(text)]


def ids(text: str) -> list[int]:
    return ToyTokenizer(96).encode(text)


def prompt_of(tokenizer: ToyTokenizer, **fields: Any) -> list[int]:
    request = parse_request({"prompt": "ab", **fields}, index=0, defaults=SamplingParams(max_tokens=2))
    return prepare(request, tokenizer, Limits(100, 96))[0].token_ids


@pytest.mark.parametrize("markers", MARKERS)
def test_the_markers_stand_around_what_is_known(markers: tuple[str, str, str]) -> None:
    """The model's own start token once, prefix, suffix, then the middle; no chat template."""
    assert prompt_of(Infilling(markers), suffix="cd") == [START, 93, *ids("ab"), 94, *ids("cd"), 95]


def test_an_empty_suffix_is_none() -> None:
    """As OpenAI's clients send it."""
    assert prompt_of(ToyTokenizer(96), suffix="", raw=True) == ids("ab")


def test_a_model_without_the_tokens_refuses_a_suffix() -> None:
    """With what is missing."""
    with pytest.raises(RequestError, match=r"^suffix: this model has no tokens for filling in the middle"):
        prompt_of(ToyTokenizer(96), suffix="cd")


def test_a_suffix_needs_a_prompt_as_text() -> None:
    """A conversation has no middle."""
    with pytest.raises(RequestError, match=r"^suffix"):
        parse_request({"prompt_token_ids": [1], "suffix": "a"}, index=0, defaults=SamplingParams())


def test_requests_made_by_hand_obey_the_same_rule() -> None:
    """Nothing is dropped in silence."""
    request = Request("a", prompt_token_ids=(1, 2), suffix="x", params=SamplingParams(max_tokens=2))
    with pytest.raises(RequestError, match=r"^suffix"):
        prepare(request, ToyTokenizer(96), Limits(100, 96))

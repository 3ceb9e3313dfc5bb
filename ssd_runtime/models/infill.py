"""Prompts with a hole in the middle, for models that were trained to fill it."""

from __future__ import annotations

from ssd_runtime.errors import RequestError
from ssd_runtime.models.tokenizer import Tokenizer

MARKERS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
)
"""Before prefix, suffix and middle, as Qwen and CodeGemma, StarCoder, SantaCoder and DeepSeek have them."""


def infill_ids(tokenizer: Tokenizer, prefix: str, suffix: str) -> list[int]:
    """The prompt that asks for what stands between; raises `RequestError` where the model cannot."""
    known = {token: token_id for token_id, token in enumerate(tokenizer.tokens())}
    for markers in MARKERS:
        if all(marker in known for marker in markers):
            before, after, middle = (known[marker] for marker in markers)
            texts = plain_ids(tokenizer, prefix), plain_ids(tokenizer, suffix)
            return [*tokenizer.encode(""), before, *texts[0], after, *texts[1], middle]
    raise RequestError(
        f"suffix: this model has no tokens for filling in the middle (such as {MARKERS[0][0]}); leave it out",
        "suffix",
    )


def plain_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of `text` without the model's own start token."""
    start, token_ids = tokenizer.encode(""), tokenizer.encode(text)
    return token_ids[len(start) :] if token_ids[: len(start)] == start else token_ids

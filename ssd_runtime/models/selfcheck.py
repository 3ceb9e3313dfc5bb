"""A check at start-up, on the loaded weights, that a row's bits do not depend on its company."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.decoder import Decoder

WHOLE_ROWS = "whole rows"
TILES = "tiles of 8 rows"

_BLOCK = 16
_BLOCKS = 10
_TOKENS = 150
_WANTED = 3
_CHUNKINGS = ((1, 7, 142), (100, 41, 9), (64, 64, 1, 21), (_TOKENS - 1, 1))


def check_rows(decoder: Decoder) -> str:
    """Feed the same tokens alone, in chunks, moved and in company, and compare the logits' bits.

    Runs the first layer and the head: layers are alike. Returns the policy: `WHOLE_ROWS` when all
    bits agree; otherwise the decoder is switched to `TILES`, which is slower.
    """
    if rows_agree(decoder.shallow(1)):
        return WHOLE_ROWS
    decoder.use_tiles()
    return TILES


def rows_agree(decoder: Decoder) -> bool:
    """Whether every way of feeding the same tokens gives the same bits."""
    tokens = [(7 * at + 3) % decoder.config.vocab_size for at in range(_TOKENS)]
    whole = _fed(decoder, tokens, (_TOKENS,), company=False)
    return all(
        torch.equal(whole[-1:], _fed(decoder, tokens, chunks, company)[-1:])
        for chunks in _CHUNKINGS
        for company in (False, True)
    )


def _fed(decoder: Decoder, tokens: Sequence[int], chunks: Sequence[int], company: bool) -> Tensor:
    """Logits of the last chunk, with another row before each chunk or not."""
    kv = decoder.new_kv(num_blocks=2 * _BLOCKS, block_size=_BLOCK)
    start = 0
    logits = torch.empty(0)
    for chunk in chunks:
        row = ForwardRow(tokens[start : start + chunk], start, range(_BLOCKS), min(chunk, _WANTED))
        logits = _pass(decoder, row, kv, company)
        start += chunk
    return logits


def _pass(decoder: Decoder, row: ForwardRow, kv: PagedKV, company: bool) -> Tensor:
    other = ForwardRow(tuple(reversed(row.token_ids))[:11], 0, range(_BLOCKS, 2 * _BLOCKS), 1)
    return decoder.forward([other, row] if company else [row], kv)

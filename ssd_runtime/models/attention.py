"""Causal attention over paged KV for ragged rows, in which a row's bits are its own.

Each row's tokens become one or more *segments* (same row, adjacent tokens). Segments of like
shape form a group and run as one batched product. What makes a token's result independent of its
company, of the chunking of its row and of its place in it:

- queries are padded to a multiple of `QUERY_TILE` tokens, keys to a multiple of `KEY_TILE`, so that
  products consist of whole tiles;
- the softmax of a row accumulates from left to right, so masked (exactly zero) keys at the end
  change nothing;
- the sum over values runs in pieces of `KEY_TILE` keys at fixed positions, left to right;
- keys that a row does not have are read from the zero slot, never from other rows' blocks.

`selfcheck.py` confirms this on the machine at hand.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_runtime.device.transfer import Transfer
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.config import DecoderConfig

QUERY_TILE = 8
KEY_TILE = 128

Ints = NDArray[np.int64]
Upload = Callable[[NDArray[Any]], Tensor]


@dataclass(frozen=True, slots=True)
class _Segment:
    """Tokens `first … first + length` of the flat batch, at positions from `start` of `row`."""

    row: int
    first: int
    length: int
    start: int

    @property
    def queries(self) -> int:
        return _round_up(self.length, QUERY_TILE)

    @property
    def keys(self) -> int:
        return _round_up(self.start + self.length, KEY_TILE)


@dataclass(frozen=True, slots=True)
class Group:
    """Segments of like shape: B = kv_heads · segments products of `[M, D] × [D, S]`.

    query_index: `[B · M]` into the `[tokens · heads]` query vectors; key_index: `[B · S]` into a
    layer's entries, slot · kv_heads + head; masks: window → `[B, M, S]`, True where a key is hidden.
    """

    query_index: Tensor
    key_index: Tensor
    masks: dict[int | None, Tensor]


@dataclass(frozen=True, slots=True)
class Plan:
    """One forward pass of N tokens laid out once, the same for all layers.

    token_ids, positions: `[N]`; entries `[N · kv_heads]`: where the KV goes; outputs `[N · heads]`: each
    token's place in the groups' concatenated results; logits: tokens that need logits.
    """

    token_ids: Tensor
    positions: Tensor
    entries: Tensor
    groups: list[Group]
    outputs: Tensor
    logits: Tensor


def make_plan(
    rows: Sequence[ForwardRow], kv: PagedKV, config: DecoderConfig, tile: int | None, transfer: Transfer
) -> Plan:
    """Lay out `rows`, and bring the plan to the device.

    `tile`: tokens in a segment at most; None takes each row whole.
    """

    def upload(array: NDArray[Any]) -> Tensor:
        return transfer.up(torch.from_numpy(array))

    tables = [_slots(row, kv) for row in rows]
    groups = _group(_segments(rows, tile))
    token_ids = np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows])
    positions = np.concatenate([np.arange(row.start, row.start + len(row.token_ids)) for row in rows])
    ends = np.cumsum([len(row.token_ids) for row in rows])
    fed = _concatenate(slots[row.start :] for row, slots in zip(rows, tables, strict=True))
    return Plan(
        token_ids=upload(token_ids),
        positions=upload(positions),
        entries=upload(kv.index(fed).reshape(-1)),
        groups=[_layout(group, tables, kv, config, upload) for group in groups],
        outputs=upload(_outputs(groups, len(token_ids), config)),
        logits=upload(
            _concatenate(
                np.arange(end - row.num_logits, end) for row, end in zip(rows, ends.tolist(), strict=True)
            )
        ),
    )


def attend(queries: Tensor, layer: int, plan: Plan, kv: PagedKV, window: int | None) -> Tensor:
    """Attention of `queries` `[N · heads, D]`, scaled already, over one layer of `kv`.

    Returns `[N · heads, D]`.
    """
    results = [_attend_group(queries, kv, layer, group, window) for group in plan.groups]
    joined = results[0] if len(results) == 1 else torch.cat(results)
    return joined.index_select(0, plan.outputs)


def _attend_group(queries: Tensor, kv: PagedKV, layer: int, group: Group, window: int | None) -> Tensor:
    mask = group.masks[window]
    batch, rows, keys = mask.shape
    dim = queries.shape[-1]
    query = queries.index_select(0, group.query_index).view(batch, rows, dim)
    entries = kv.read(layer, group.key_index).view(batch, keys, 2 * dim)
    key, value = entries[..., :dim], entries[..., dim:]
    weights = torch.bmm(query, key.transpose(1, 2)).masked_fill_(mask, -torch.inf).softmax(-1)
    result = torch.bmm(weights[..., :KEY_TILE], value[:, :KEY_TILE])
    for at in range(KEY_TILE, keys, KEY_TILE):
        result.baddbmm_(weights[..., at : at + KEY_TILE], value[:, at : at + KEY_TILE])
    return result.view(-1, dim)


def _segments(rows: Sequence[ForwardRow], tile: int | None) -> list[_Segment]:
    segments = []
    first = 0
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        step = tile or length
        segments += [
            _Segment(index, first + at, min(step, length - at), row.start + at)
            for at in range(0, length, step)
        ]
        first += length
    return segments


def _group(segments: Iterable[_Segment]) -> list[list[_Segment]]:
    """Segments with as many query tiles, and about as many keys, so that padding stays small."""
    groups: dict[tuple[int, int], list[_Segment]] = defaultdict(list)
    for segment in segments:
        groups[segment.queries, segment.keys.bit_length()].append(segment)
    return list(groups.values())


def _slots(row: ForwardRow, kv: PagedKV) -> Ints:
    """The slot of each of the row's positions, those before `start` included."""
    length = row.start + len(row.token_ids)
    blocks = np.asarray(row.block_table[: _round_up(length, kv.block_size) // kv.block_size], dtype=np.int64)
    slots: Ints = (blocks[:, None] * kv.block_size + np.arange(kv.block_size)).reshape(-1)[:length]
    return slots


def _layout(
    group: list[_Segment], tables: list[Ints], kv: PagedKV, config: DecoderConfig, upload: Upload
) -> Group:
    shared = config.heads // config.kv_heads
    tokens, positions, slots = _gather(group, tables, kv)
    heads = np.arange(config.heads).reshape(config.kv_heads, 1, shared, 1)
    query_index = tokens[None, :, None, :] * config.heads + heads
    key_index = np.moveaxis(kv.index(slots), -1, 0)
    distance = positions[:, :, None] - np.arange(slots.shape[1])
    windows = set(config.windows) or {None}
    masks = {window: _mask(distance, window, config, upload) for window in windows}
    return Group(upload(query_index.reshape(-1)), upload(key_index.reshape(-1)), masks)


def _gather(group: list[_Segment], tables: list[Ints], kv: PagedKV) -> tuple[Ints, Ints, Ints]:
    """Flat token and position `[R, Q]`, and KV slot `[R, S]`, of each padded segment."""
    queries = group[0].queries
    keys = max(segment.keys for segment in group)
    last = np.array([[segment.length - 1] for segment in group])
    steps = np.minimum(np.arange(queries), last)
    tokens = steps + np.array([[segment.first] for segment in group])
    positions = steps + np.array([[segment.start] for segment in group])
    slots = np.full((len(group), keys), kv.zero_slot)
    for at, segment in enumerate(group):
        length = segment.start + segment.length
        slots[at, :length] = tables[segment.row][:length]
    return tokens, positions, slots


def _mask(distance: Ints, window: int | None, config: DecoderConfig, upload: Upload) -> Tensor:
    """`[B, M, S]` of a group, from the distances query − key `[R, Q, S]`."""
    hidden = distance < 0 if window is None else (distance < 0) | (distance >= window)
    rows, queries, keys = hidden.shape
    shared = config.heads // config.kv_heads
    wide = upload(hidden)[None, :, None].expand(config.kv_heads, rows, shared, queries, keys)
    return wide.reshape(config.kv_heads * rows, shared * queries, keys)


def _outputs(groups: list[list[_Segment]], tokens: int, config: DecoderConfig) -> Ints:
    """Where each token's heads lie in the concatenated results `[kv_heads, R, shared, Q]`."""
    shared = config.heads // config.kv_heads
    places = np.zeros((tokens, config.kv_heads, shared), dtype=np.int64)
    offset = 0
    for group in groups:
        queries = group[0].queries
        size = (config.kv_heads, len(group), shared, queries)
        index = np.arange(offset, offset + np.prod(size)).reshape(size)
        for at, segment in enumerate(group):
            heads_first = index[:, at, :, : segment.length]
            places[segment.first : segment.first + segment.length] = np.moveaxis(heads_first, 2, 0)
        offset += index.size
    return places.reshape(-1)


def _concatenate(parts: Iterable[Ints]) -> Ints:
    joined: Ints = np.concatenate(list(parts))
    return joined


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple

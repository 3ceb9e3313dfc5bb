"""A decoder whose matrices are all native runs each pass as one call into the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ssd_kernels.cpu.library import KV, DrawOfRow, Layer, Model, Pass
from ssd_kernels.cpu.matrix import NativeMatrix, num_threads
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import Draw, ForwardRow, Interrupted, StopWord
from ssd_runtime.sampling.draw import DraftStep

if TYPE_CHECKING:
    from ssd_runtime.models.decoder import Decoder
    from ssd_runtime.models.layer import DecoderLayer

INTERRUPTED = 1
_EMBEDDING_BITS = {torch.float32: 32, torch.bfloat16: 16, torch.float16: -16}
_KV_FORMATS = {torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}

_MATRICES = ("qkv", "output", "gate_up", "down")
_VECTORS = ("qkv_bias", "output_bias", "gate_up_bias", "down_bias", "qk_norm", "input_norm", "post_norm")


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of one token's logits: a draw at `position`, and the `count` likeliest tokens there.

    expected: the draft at that place. The wanted tokens of one row end with one that expects nothing (-1);
    behind a draw that is not what was expected, the row's others are `SKIPPED`.
    """

    draw: Draw
    position: int
    expected: int = -1
    count: int = 0


class NativePass:
    """One decoder's weights as the native library wants them. Holds what the addresses point to."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._library = _native(decoder.head).library
        self._layers = (Layer * len(decoder.layers))(*map(_layer, decoder.layers))
        self._model = _model(decoder, self._layers)

    def logits(self, rows: Sequence[ForwardRow], kv: PagedKV, stop: StopWord | None) -> Tensor:
        """Logits of the wanted tokens `[Σ num_logits, vocab]`. Raises Interrupted."""
        call = _Call(rows, kv, stop)
        logits = self._room_for_logits(call)
        self._run(call, kv)
        return logits

    def draw(
        self,
        rows: Sequence[ForwardRow],
        kv: PagedKV,
        asks: Sequence[Ask | None],
        vocab_size: int,
        stop: StopWord | None,
    ) -> tuple[list[DraftStep], Tensor | None]:
        """See `Decoder.draw`."""
        call = _Call(rows, kv, stop)
        drawn = _Drawn(call, asks, vocab_size)
        logits = self._room_for_logits(call) if None in asks else None
        self._run(call, kv)
        return drawn.steps(), logits

    def _room_for_logits(self, call: _Call) -> Tensor:
        logits = torch.empty(call.values.wanted, self._decoder.config.vocab_size)
        call.values.logits = logits.data_ptr()
        return logits

    def _run(self, call: _Call, kv: PagedKV) -> None:
        status = self._library.ssd_forward(
            ctypes.byref(self._model), ctypes.byref(_kv(kv)), ctypes.byref(call.values)
        )
        if status < 0:
            raise MemoryError(f"no memory for a pass over {call.values.tokens} tokens")
        if status == INTERRUPTED:
            raise Interrupted


class _Call:
    """One pass: the struct, and the arrays that its addresses point to."""

    def __init__(self, rows: Sequence[ForwardRow], kv: PagedKV, stop: StopWord | None) -> None:
        lengths = np.array([len(row.token_ids) for row in rows])
        starts = np.array([row.start for row in rows])
        wants = np.array([row.num_logits for row in rows])
        ends = np.cumsum(lengths)
        tables = [
            np.asarray(row.block_table[: -(-(row.start + len(row.token_ids)) // kv.block_size)])
            for row in rows
        ]
        offsets = np.cumsum([0, *map(len, tables[:-1])])
        self.values = Pass(tokens=int(ends[-1]), wanted=int(wants.sum()), threads=num_threads())
        self.kept: list[Any] = [stop]
        if stop is not None:
            self.values.stop = stop.address
        self.put("token_ids", np.concatenate([np.asarray(row.token_ids, dtype=np.int64) for row in rows]))
        self.put("positions", _ramps(starts, lengths))
        self.put("table_at", np.repeat(offsets, lengths))
        self.put("tables", np.concatenate(tables))
        self.put("wanted_tokens", _ramps(ends - wants, wants))

    def put(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Give the pass the address of `array`, integers as int64; returns what lies there."""
        kept = np.ascontiguousarray(array, dtype=np.int64 if array.dtype.kind in "iu" else array.dtype)
        self.kept.append(kept)
        setattr(self.values, name, kept.ctypes.data)
        return kept


class _Drawn:
    """Asks a pass for draws, and reads them when it is done."""

    def __init__(self, call: _Call, asks: Sequence[Ask | None], vocab_size: int) -> None:
        self._counts = [0 if ask is None else min(ask.count, vocab_size) for ask in asks]
        most = max(self._counts, default=0)
        rows = (DrawOfRow * len(asks))(*map(_draw, asks, self._counts))
        call.kept.append(rows)
        call.values.draws = ctypes.addressof(rows)
        call.values.drawn_vocab = vocab_size
        call.values.count = most
        call.put("expected", np.array([-1 if ask is None else ask.expected for ask in asks], dtype=np.int64))
        self._tokens = call.put("drawn", np.empty(len(asks), dtype=np.int64))
        self._candidates = call.put("candidates", np.empty((len(asks), most), dtype=np.int64))
        self._scores = call.put("scores", np.empty((len(asks), most), dtype=np.float32))

    def steps(self) -> list[DraftStep]:
        """What was drawn, one for each ask."""
        drawn = zip(
            self._tokens.tolist(), self._candidates.tolist(), self._scores.tolist(), self._counts, strict=True
        )
        return [
            DraftStep(token, tuple(ids[:n]), tuple(scores[:n])) if token >= 0 else DraftStep(token, (), ())
            for token, ids, scores, n in drawn
        ]


def is_native(matrices: Iterable[object]) -> bool:
    """Whether every one of `matrices` is in the native library's panels."""
    return all(isinstance(matrix, NativeMatrix) for matrix in matrices)


def draws_natively(model: object, sampler: object) -> bool:
    """Whether `model` can draw by itself, and would draw what `sampler` draws."""
    return bool(getattr(model, "can_draw", False) and getattr(sampler, "is_native", False))


def _native(matrix: object) -> NativeMatrix:
    assert isinstance(matrix, NativeMatrix)
    return matrix


def _model(decoder: Decoder, layers: Any) -> Model:
    config = decoder.config
    return Model(
        vocab=config.vocab_size,
        hidden=config.hidden,
        layers=len(layers),
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        rms_eps=config.rms_eps,
        rope_factor=decoder.rope_factor,
        embedding_bits=_EMBEDDING_BITS[decoder.embedding.dtype],
        embedding=decoder.embedding.data_ptr(),
        frequencies=decoder.frequencies.data_ptr(),
        norm=decoder.norm.data_ptr(),
        head=ctypes.addressof(_native(decoder.head).handle.contents),
        layer=layers,
    )


def _layer(layer: DecoderLayer) -> Layer:
    matrices = {name: ctypes.addressof(_native(getattr(layer, name)).handle.contents) for name in _MATRICES}
    vectors = {name: vector.data_ptr() for name in _VECTORS if (vector := getattr(layer, name)) is not None}
    return Layer(**matrices, **vectors, window=layer.window or 0)


def _kv(kv: PagedKV) -> KV:
    return KV(
        data=kv.data.data_ptr(),
        layer_bytes=kv.data[0].nbytes,
        block_size=kv.block_size,
        format=_KV_FORMATS[kv.dtype],
    )


def _draw(ask: Ask | None, count: int) -> DrawOfRow:
    if ask is None:
        return DrawOfRow(count=-1)
    draw = ask.draw
    return DrawOfRow(draw.seed, ask.position, draw.temperature, draw.top_p, draw.min_p, draw.top_k, count)


def _blocks(row: ForwardRow, kv: PagedKV) -> int:
    """How many blocks hold the row's tokens and all before them."""
    return -(-(row.start + len(row.token_ids)) // kv.block_size)


def _ramps(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """For each row `lengths[i]` numbers from `starts[i]` on, one row after the other."""
    ends = np.cumsum(lengths)
    ramps: NDArray[Any] = np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)
    return ramps

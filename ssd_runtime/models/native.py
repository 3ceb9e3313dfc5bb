"""A decoder whose matrices are all native runs each pass as one call into the native library."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from ctypes import Structure
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ssd_kernels.cpu.library import KV, DrawOfRow, Layer, Model, Pass
from ssd_kernels.cpu.matrix import NativeMatrix, num_threads
from ssd_runtime.memory.kv import PagedKV
from ssd_runtime.messages import Draw, ForwardRow, Interrupted, StopWord
from ssd_runtime.models.native_build import Build, BuildArrays
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
    """One decoder's weights as the native library wants them. Holds what the addresses point to.

    But not the decoder, which holds it: weights are freed with the last who uses them, not by a collector.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._kept = (decoder.head, *decoder.layers, decoder.embedding, decoder.frequencies, decoder.norm)
        self._vocab_size = decoder.config.vocab_size
        self._library = _native(decoder.head).library
        self._layers = (Layer * len(decoder.layers))(*map(_layer, decoder.layers))
        self._model = _model(decoder, self._layers)
        self._kvs: WeakKeyDictionary[PagedKV, KV] = WeakKeyDictionary()

    def reserve(self, tokens: int, wanted: int) -> None:
        """See `Decoder.reserve`."""
        if self._library.ssd_reserve(ctypes.byref(self._model), tokens, wanted, num_threads()) < 0:
            raise MemoryError(f"no memory for passes over {tokens} tokens")

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
        call = _Call(rows, kv, stop, [-1 if ask is None else ask.expected for ask in asks])
        drawn = _Drawn(call, asks, vocab_size)
        logits = self._room_for_logits(call) if None in asks else None
        self._run(call, kv)
        return drawn.steps(), logits

    def _room_for_logits(self, call: _Call) -> Tensor:
        logits = torch.empty(call.values.wanted, self._vocab_size)
        call.values.logits = logits.data_ptr()
        return logits

    def build(self, build: Build, kv: PagedKV, vocab_size: int) -> list[tuple[int, float]]:
        """See `Decoder.build`."""
        call = BuildArrays(build, vocab_size)
        self._call(self._library.ssd_build, kv, call.values, f"a build of {len(build.rows)} rows")
        return call.note()

    def _run(self, call: _Call, kv: PagedKV) -> None:
        what = f"a pass over {call.values.tokens} tokens"
        if self._call(self._library.ssd_forward, kv, call.values, what) == INTERRUPTED:
            raise Interrupted

    def _call(self, function: Callable[..., int], kv: PagedKV, values: Structure, what: str) -> int:
        pages = self._kvs.get(kv)
        if pages is None:
            pages = self._kvs[kv] = _kv(kv)
        status = function(ctypes.byref(self._model), ctypes.byref(pages), ctypes.byref(values))
        if status < 0:
            raise MemoryError(f"no memory for {what}")
        return status


class _Call:
    """One pass: the struct, and the numbers that its addresses point to.

    One plain array for all of them: a draft's pass has a few tokens, and NumPy's calls, or an array for each
    kind of number, would take longer than their work.
    """

    def __init__(
        self, rows: Sequence[ForwardRow], kv: PagedKV, stop: StopWord | None, expected: Sequence[int] = ()
    ) -> None:
        """expected: of each draw that is asked for, see `Ask`."""
        token_ids: list[int] = []
        positions: list[int] = []
        table_at: list[int] = []
        tables: list[int] = []
        wanted: list[int] = []
        for row in rows:
            end = row.start + len(row.token_ids)
            token_ids += row.token_ids
            positions += range(row.start, end)
            table_at += [len(tables)] * len(row.token_ids)
            tables += row.block_table[: -(-end // kv.block_size)]
            wanted += range(len(token_ids) - row.num_logits, len(token_ids))
        self._stop = stop
        self.values = Pass(tokens=len(token_ids), wanted=len(wanted), threads=num_threads())
        if stop is not None:
            self.values.stop = stop.address
        parts = (token_ids, positions, table_at, tables, wanted, expected, expected)
        self._numbers = array("q", [number for part in parts for number in part])
        ends = accumulate(8 * len(part) for part in parts)
        names = ("positions", "table_at", "tables", "wanted_tokens", "expected", "drawn")
        address = self.values.token_ids = self._numbers.buffer_info()[0]
        for name, end in zip(names, ends, strict=False):
            setattr(self.values, name, address + end)

    def drawn(self) -> Sequence[int]:
        """What was drawn, for each of `expected`."""
        return self._numbers[len(self._numbers) - self.values.wanted :]


class _Drawn:
    """Asks a pass for draws, and reads them when it is done."""

    def __init__(self, call: _Call, asks: Sequence[Ask | None], vocab_size: int) -> None:
        self._call = call
        self._counts = [0 if ask is None else min(ask.count, vocab_size) for ask in asks]
        self._most = max(self._counts, default=0)
        self._rows = (DrawOfRow * len(asks))(*map(_draw, asks, self._counts))
        values = call.values
        values.draws = ctypes.addressof(self._rows)
        values.drawn_vocab = vocab_size
        values.count = self._most
        if self._most:
            self._candidates = array("q", bytes(8 * len(asks) * self._most))
            self._scores = array("f", bytes(4 * len(asks) * self._most))
            values.candidates = self._candidates.buffer_info()[0]
            values.scores = self._scores.buffer_info()[0]

    def steps(self) -> list[DraftStep]:
        """What was drawn, one for each ask."""
        tokens = self._call.drawn()
        if not self._most:
            return [DraftStep(token, (), ()) for token in tokens]
        steps = []
        for index, (token, count) in enumerate(zip(tokens, self._counts, strict=True)):
            at = slice(index * self._most, index * self._most + (count if token >= 0 else 0))
            steps.append(DraftStep(token, tuple(self._candidates[at]), tuple(self._scores[at])))
        return steps


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

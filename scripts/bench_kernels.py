"""Forward passes of the embedded model, by format, cores and rows, beside what the machine allows.

    python -m scripts.bench_kernels [--quick] [--json FILE]

The floor is the larger of two that are measured in the same run: the time to read the weights once (the best
of three ways to read memory: ours, NumPy's, PyTorch's), and the time of the products' arithmetic at the rate
of a product whose weights stay in the cache. Medians; the machine should be quiet. Exit status 2 without the
native library. At the end come look-ups and packed histories, see `bench_stores`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scripts.bench_stores import histories, look_ups, tables
from ssd_kernels.cpu.library import TORCH, VARIABLE, native_library
from ssd_kernels.cpu.matrix import Format, pack_native
from ssd_plugins.quantizers import BFloat16Quantizer, Int4Quantizer, Int8Quantizer
from ssd_runtime.device.cores import available_cores, confine_thread, use_threads
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.config import DecoderConfig
from ssd_runtime.models.decoder import Decoder
from ssd_runtime.models.linear import Float32Quantizer, Quantizer
from ssd_runtime.models.loading import load, resolve

MODEL = "smollm2-135m"
CACHED = (480, 576)
CACHED_ROWS = 64
PROBE_BYTES = 1 << 28
BLOCKS, BLOCK_SIZE = 4, 16
FORMATS: dict[str, tuple[Format, Quantizer]] = {
    "none": (Format.FLOAT32, Float32Quantizer()),
    "bf16": (Format.BFLOAT16, BFloat16Quantizer()),
    "int8": (Format.INT8, Int8Quantizer()),
    "int4": (Format.INT4, Int4Quantizer()),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; times in seconds, of one pass over `m` tokens of one sequence."""

    format: str
    cores: int
    m: int
    seconds: float
    floor_seconds: float
    memory_floor_seconds: float
    arithmetic_floor_seconds: float
    torch_seconds: float | None


def load_decoder(quantizer: Quantizer, kernels: str | None = None) -> Decoder:
    """The embedded model in one format, on the native library or, for `torch`, on PyTorch."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = kernels or before or ""
    try:
        return load(resolve(MODEL), quantizer, progress=lambda what, done, total: None).decoder
    finally:
        os.environ[VARIABLE] = before or ""


def median_seconds(call: Callable[[], object], repeats: int) -> float:
    """The median duration of `call`, after one that is not counted."""
    call()
    return statistics.median(_seconds(call) for _ in range(repeats))


def forward_pass(decoder: Decoder, tokens: int) -> Callable[[], Tensor]:
    """A call that feeds `tokens` tokens and wants the logits of each."""
    kv = decoder.new_kv(BLOCKS, BLOCK_SIZE)
    row = ForwardRow(range(tokens), 0, range(BLOCKS), tokens)
    return lambda: decoder.forward([row], kv)


def read_rate(cores: int, repeats: int) -> float:
    """GB/s of the fastest of three ways to read memory, on `cores` cores."""
    library = native_library()
    assert library is not None
    words = np.ones(PROBE_BYTES // 8)
    tensor = torch.from_numpy(words)
    ways: list[Callable[[], object]] = [
        lambda: library.ssd_read_seconds(words.ctypes.data, PROBE_BYTES, cores),
        lambda: tensor.sum(),
    ]
    if cores == 1:
        ways.append(lambda: words.max())
    use_threads(cores)
    return max(PROBE_BYTES / median_seconds(way, repeats) / 1e9 for way in ways)


def arithmetic_rate(kind: Format, repeats: int) -> float:
    """Products of one weight and one input, a second and core, where the weights stay in the cache."""
    weight = pack_native(torch.randn(CACHED), kind)
    assert weight is not None
    x = torch.randn(CACHED_ROWS, CACHED[1])
    weight(x)
    seconds = min(_seconds(lambda: weight(x)) for _ in range(20 * repeats))
    return CACHED[0] * CACHED[1] * CACHED_ROWS / seconds


def measured(options: argparse.Namespace, rates: dict[int, float]) -> Iterator[Row]:
    """Every row of the table, as it is measured."""
    repeats = 7 if options.quick else 21
    for name, (kind, quantizer) in FORMATS.items():
        use_threads(1)
        peak = arithmetic_rate(kind, repeats)
        ours = load_decoder(quantizer)
        theirs = None if options.quick else load_decoder(quantizer, TORCH)
        for cores in rates:
            use_threads(cores)
            for m in (1, 4) if options.quick else (1, 2, 4, 6, 8):
                memory = ours.weight_bytes / rates[cores] / 1e9
                arithmetic = num_weights(ours.config) * m / peak / cores
                seconds = median_seconds(forward_pass(ours, m), repeats)
                torch_seconds = median_seconds(forward_pass(theirs, m), 5) if theirs else None
                yield Row(name, cores, m, seconds, max(memory, arithmetic), memory, arithmetic, torch_seconds)


def num_weights(config: DecoderConfig) -> int:
    """Weights of all matrices that a pass multiplies by."""
    heads = (2 * config.heads + 2 * config.kv_heads) * config.head_dim
    layer = config.hidden * (heads + 3 * config.intermediate)
    return config.layers * layer + config.vocab_size * config.hidden


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _line(row: Row) -> str:
    theirs = "–" if row.torch_seconds is None else f"{row.torch_seconds * 1e3:.1f}"
    return (
        f"| {row.format} | {row.cores} | {row.m} | {row.seconds * 1e3:.2f} | {row.floor_seconds * 1e3:.2f} | "
        f"{row.floor_seconds / row.seconds:.2f} | {theirs} |\n"
    )


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rows and repetitions, PyTorch left out")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    options = parser.parse_args()
    library = native_library()
    if library is None:
        sys.stderr.write("there is no native library here; install with a C++ compiler\n")
        return 2
    cores = sorted(available_cores())[:2]
    confine_thread(frozenset(cores))
    rates = {count: read_rate(count, 9) for count in range(1, len(cores) + 1)}
    sys.stdout.write("".join(f"{count} cores read {rate:.1f} GB/s\n" for count, rate in rates.items()))
    sys.stdout.write("| format | cores | M | ms | floor, ms | of the floor | PyTorch, ms |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- | --- | --- |\n")
    rows = []
    for row in measured(options, rates):
        rows.append(row)
        sys.stdout.write(_line(row))
        sys.stdout.flush()
    lines, packed = list(look_ups()), list(histories())
    sys.stdout.write("\n" + tables(lines, packed))
    if options.json:
        machine = f"{platform.machine()}, {platform.system()}, kernels {library.ssd_isa().decode()}"
        report: dict[str, Any] = {
            "machine": machine,
            "read_gb_s": {str(count): rate for count, rate in rates.items()},
            "rows": [asdict(row) for row in rows],
            "look_ups": [asdict(line) for line in lines],
            "histories": [asdict(history) for history in packed],
        }
        options.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

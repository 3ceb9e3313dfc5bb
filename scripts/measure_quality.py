"""Cross-entropy of one text by our forward pass and by llama.cpp's, on the same file at the same width.

    python -m scripts.measure_quality none=model-f32.gguf int8=model-q8_0.gguf [--json FILE]

Each pair is one of our weight formats and the GGUF file that both sides read. The text is the project's
own documentation, its first 20 000 tokens, in windows of 512; the first token of a window is not judged.
Needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from ssd_runtime.build import no_progress
from ssd_runtime.hooks.manager import PluginManager
from ssd_runtime.messages import ForwardRow
from ssd_runtime.models.loading import LoadedModel, load, resolve

Logits = Callable[[Sequence[int]], NDArray[np.float32]]
"""From the tokens of a window to the logits `[N, V]` after each of them."""
BLOCK_SIZE = 16


def shipped_text() -> str:
    """All of the documentation that comes with the source, in one order."""
    root = Path(__file__).parents[1]
    files = [root / "README.md", *sorted((root / "docs").glob("*.md")), root / "CHANGELOG.md"]
    return "\n\n".join(file.read_text(encoding="utf-8") for file in files)


def windows(token_ids: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """The tokens in pieces of `size`; the last one may be shorter."""
    return (token_ids[start : start + size] for start in range(0, len(token_ids), size))


def cross_entropy(logits_of: Logits, token_ids: Sequence[int], size: int) -> float:
    """Nats per token, over every token that stands behind another in its window."""
    losses = [_losses(logits_of(window), window) for window in windows(token_ids, size) if len(window) > 1]
    return float(np.concatenate(losses).mean())


def _losses(logits: NDArray[np.float32], window: Sequence[int]) -> NDArray[np.float64]:
    before = logits[:-1].astype(np.float64)
    found: NDArray[np.float64] = logsumexp(before, axis=1) - before[np.arange(len(before)), list(window[1:])]
    return found


def load_ours(file: str, quantization: str) -> LoadedModel:
    """The model in `file`, its weights in our format `quantization`."""
    manager = PluginManager()
    manager.load([])
    return load(resolve(file), manager.registries.quantizers.get(quantization)(), progress=no_progress)


def our_logits(model: LoadedModel, size: int) -> Logits:
    """Our forward pass, a window at a time, with KV in float32."""
    kv = model.decoder.new_kv(-(-size // BLOCK_SIZE), BLOCK_SIZE)
    table = tuple(range(kv.num_blocks))

    def logits(window: Sequence[int]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = model.decoder.forward(
            [ForwardRow(tuple(window), 0, table, len(window))], kv
        ).numpy()
        return found

    return logits


def llama_logits(file: str, size: int) -> Logits:
    """llama.cpp's, with its own defaults (KV in fp16)."""
    llama: Any = importlib.import_module("llama_cpp").Llama(
        file, n_ctx=size, n_batch=size, logits_all=True, verbose=False
    )

    def logits(window: Sequence[int]) -> NDArray[np.float32]:
        llama.reset()
        llama.eval(list(window))
        return np.array(llama.scores[: len(window)], dtype=np.float32)

    return logits


def compare(quantization: str, file: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both cross-entropies, and by how much ours is larger than theirs."""
    model = load_ours(file, quantization)
    token_ids = model.tokenizer.encode(shipped_text())[: options.tokens]
    ours = cross_entropy(our_logits(model, options.window), token_ids, options.window)
    theirs = cross_entropy(llama_logits(file, options.window), token_ids, options.window)
    return {
        "format": quantization,
        "file": Path(file).name,
        "tokens": len(token_ids),
        "ours": ours,
        "llama.cpp": theirs,
        "difference": ours / theirs - 1,
    }


def main() -> int:
    """The command line: a line for each pair."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="FORMAT=FILE.gguf")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    for quantization, _, file in (pair.partition("=") for pair in options.pairs):
        rows.append(compare(quantization, file, options))
        sys.stdout.write(json.dumps(rows[-1]) + "\n")
        sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

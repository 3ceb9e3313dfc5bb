"""Look-ups in nanoseconds, with and without a Bloom filter, and how small a history becomes.

    python -m scripts.bench_stores [--json FILE]

Look-ups: of an outcome that was prepared and of one that was not, in the outcome cache; of tokens that some
remembered answer has and of tokens that none has, in the store behind `suffix`. Medians of many look-ups; the
machine should be quiet. Histories: this project's own documents and sources in the embedded model's tokens,
packed as `engine.history_codec: zstd` does. Needs the extra `stores`. `bench_kernels` prints the same tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from random import Random
from typing import Any

from ssd_plugins.store import GRAM, TextStore
from ssd_runtime.memory.history import PackedTokens
from ssd_runtime.models.linear import Float32Quantizer
from ssd_runtime.models.loading import load, resolve
from ssd_runtime.speculation.cache import Outcome, OutcomeCache

ROOT = Path(__file__).parents[1]
MODEL = "smollm2-135m"
VOCAB = 49_152
ANSWER = 256
"""Tokens of one remembered answer."""
SIZES = (10_000, 100_000, 1_000_000)
LOOK_UPS = 2000
TEXTS = ("README.md", "docs/architecture.md", "docs/noise.md", "ssd_runtime/engine/core.py")
LENGTHS = (256, 1024)


@dataclass(frozen=True, slots=True)
class LookUp:
    """Median nanoseconds of one look-up; `tokens`: in the store, 0 for the outcome cache."""

    what: str
    tokens: int
    bloom: bool
    present_ns: float
    absent_ns: float


@dataclass(frozen=True, slots=True)
class History:
    """Bytes of the first `tokens` tokens of a text: packed, as 32-bit numbers, and as a Python list."""

    text: str
    tokens: int
    packed_bytes: int
    number_bytes: int
    list_bytes: int


def look_ups() -> Iterator[LookUp]:
    """Of the outcome cache, then of the store by size, without and with the filter."""
    yield _outcome_look_up()
    for tokens in SIZES:
        answers = [_random_text(Random(number)) for number in range(tokens // ANSWER)]
        present = [answer[at : at + GRAM] for answer in answers for at in (40, 120, 200)]
        known = {answer[at : at + GRAM] for answer in answers for at in range(ANSWER)}
        others = (_random_text(Random(f"other {number}"))[:GRAM] for number in count())
        absent = list(islice((end for end in others if end not in known), LOOK_UPS))
        for bloom in (False, True):
            store = TextStore(len(answers), tokens, bloom=bloom)
            for answer in answers:
                store.add(answer)
            found, missing = (_median_ns(_looking(store), ends) for ends in (present, absent))
            yield LookUp("suffix store", tokens, bloom, found, missing)


def histories() -> Iterator[History]:
    """Of every text as far as it goes."""
    tokenizer = load(resolve(MODEL), Float32Quantizer(), progress=lambda what, done, total: None).tokenizer
    for text in TEXTS:
        token_ids = tokenizer.encode((ROOT / text).read_text(encoding="utf-8"))
        for length in LENGTHS:
            if length <= len(token_ids):
                some = list(token_ids[:length])
                numbers = sum(map(sys.getsizeof, set(some)))
                packed = PackedTokens(some).nbytes
                yield History(text, length, packed, 4 * length, sys.getsizeof(some) + numbers)


def tables(lines: Sequence[LookUp], packed: Sequence[History]) -> str:
    """Both as Markdown."""
    rows = [
        "| look-up | tokens kept | Bloom filter | present, ns | absent, ns |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {line.what} | {line.tokens or '–'} | {'yes' if line.bloom else 'no'} | "
        f"{line.present_ns:.0f} | {line.absent_ns:.0f} |"
        for line in lines
    ]
    rows += [
        "",
        "| history | tokens | packed, bytes | of 32-bit numbers | of a list |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| {line.text} | {line.tokens} | {line.packed_bytes} | "
        f"1 / {line.number_bytes / line.packed_bytes:.2f} | 1 / {line.list_bytes / line.packed_bytes:.1f} |"
        for line in packed
    ]
    return "\n".join(rows) + "\n"


def _outcome_look_up() -> LookUp:
    prepared = [Outcome(1, 0, 100, accepted, bonus) for accepted in range(4) for bonus in (7, 9)]
    other = [Outcome(1, 0, 100, accepted, 8) for accepted in range(4)]
    cache: OutcomeCache[int] = OutcomeCache()
    entries = dict.fromkeys(prepared, 1)

    def look(outcome: Outcome) -> None:
        cache.stage(1, entries)
        cache.take(outcome)

    times = LOOK_UPS // 8
    return LookUp(
        "outcome cache", 0, False, _median_ns(look, prepared * times), _median_ns(look, other * times)
    )


def _looking(store: TextStore) -> Callable[[Sequence[int]], None]:
    def look(end: Sequence[int]) -> None:
        for _ in store.places(end, 16):
            pass

    return look


def _random_text(random: Random) -> tuple[int, ...]:
    """Frequent tokens often and rare ones rarely, about as in a language."""
    return tuple(min(VOCAB - 1, int(random.paretovariate(0.2))) for _ in range(ANSWER))


def _median_ns(look: Callable[[Any], None], questions: Sequence[Any]) -> float:
    spent = []
    for question in questions[:LOOK_UPS]:
        started = time.perf_counter_ns()
        look(question)
        spent.append(time.perf_counter_ns() - started)
    return statistics.median(spent)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here")
    options = parser.parse_args()
    lines, packed = list(look_ups()), list(histories())
    sys.stdout.write(tables(lines, packed))
    if options.json:
        report = {
            "look_ups": [asdict(line) for line in lines],
            "histories": [asdict(line) for line in packed],
        }
        options.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Plain decoding through `ssd-run pipe`, as a share of what reading the weights alone allows.

    python -m scripts.measure_floor [--formats none,bf16,int8] [--prompts FILE.jsonl:3] [--json FILE]

A rate is the slope between 16 and 272 new tokens. The machine's reading rate is probed right before each,
with the same cores, and the floor is the time to read all weights once at that rate. Medians; the machine
should be quiet.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from scripts.bench_kernels import FORMATS, load_decoder, read_rate
from scripts.peers import Ours, Work
from scripts.prompts import SHIPPED, load_prompts
from ssd_runtime.device.cores import available_cores

SHORT, LONG = 16, 272
PROBES = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """One slope, and the reading rate before it."""

    format: str
    cores: int
    weight_bytes: int
    tokens_per_second: float
    read_gb_s: float

    @property
    def share(self) -> float:
        """Of the floor: tokens a second by passes a second that reading allows."""
        return self.tokens_per_second * self.weight_bytes / (self.read_gb_s * 1e9)


def placed(cores: Sequence[int]) -> list[str]:
    """Settings that put the target on `cores`, which follow each other."""
    place = f"cpu:{cores[0]}" if len(cores) == 1 else f"cpu:{cores[0]}-{cores[-1]}"
    return ["--set", f"placement.target={place}"]


def samples(kind: str, cores: Sequence[int], works: Sequence[Work]) -> Iterator[Sample]:
    """A sample for each work, by a pipe of one format on `cores`; no other engine is loaded meanwhile."""
    weight_bytes = int(load_decoder(FORMATS[kind][1]).weight_bytes)
    with closing(Ours("autoregressive", ["--set", f"engine.quantization={kind}", *placed(cores)])) as pipe:
        pipe.rate(replace(works[0], short=1, long=9))  # the first answer allocates
        for work in works:
            read = read_rate(len(cores), PROBES)
            yield Sample(kind, len(cores), weight_bytes, pipe.rate(work), read)


def table(samples: Sequence[Sample]) -> str:
    """The medians of each format and number of cores, in markdown."""
    lines = ["| format | cores | tokens/s | read, GB/s | of the floor |", "| --- | --- | --- | --- | --- |"]
    for kind, cores in dict.fromkeys((one.format, one.cores) for one in samples):
        found = [one for one in samples if (one.format, one.cores) == (kind, cores)]
        rate = median(one.tokens_per_second for one in found)
        read, share = median(one.read_gb_s for one in found), median(one.share for one in found)
        lines.append(f"| {kind} | {cores} | {rate:.1f} | {read:.1f} | {share:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--prompts", nargs="+", default=[f"{SHIPPED}:3"], metavar="FILE[:N]")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    cores = sorted(available_cores())[:2]
    works = [Work((prompt,), ((),), SHORT, LONG) for prompt in load_prompts(options.prompts)]
    found: list[Sample] = []
    for kind in options.formats.split(","):
        for count in range(1, len(cores) + 1):
            for one in samples(kind, cores[:count], works):
                found.append(one)
                sys.stderr.write(f"{one}, {one.share:.2f} of the floor\n")
    sys.stdout.write(table(found))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

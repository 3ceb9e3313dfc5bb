"""Draw some rounds of a trace: both lanes, and what became of each proposal. Needs matplotlib.

python scripts/draw_rounds.py TRACE.json --first 20 --count 8 --out docs/img/rounds.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LANES = ("target", "draft")
COLOURS = {"verify": "#4c72b0", "build": "#dd8452", "draft": "#c44e52", "forget": "#999999"}
HIT = "#2e8b57"
MISS = "#b22222"


def events(path: Path) -> list[dict[str, Any]]:
    """The events of a trace, closed or cut off."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line.rstrip(",")) for line in lines if line.startswith("{")]


def draw(trace: Sequence[dict[str, Any]], first: int, count: int, out: Path) -> None:
    """Draw the verifications `first` to `first + count` and everything beside them into `out`."""
    from matplotlib import pyplot

    commands = [event for event in trace if event["ph"] == "X"]
    verifies = sorted((c for c in commands if c["name"] == "verify"), key=lambda c: float(c["ts"]))
    chosen = verifies[first : first + count]
    start, end = chosen[0]["ts"], chosen[-1]["ts"] + chosen[-1]["dur"]
    figure, axes = pyplot.subplots(figsize=(11, 2.8), layout="constrained")
    for command in commands:
        if start <= command["ts"] + command["dur"] and command["ts"] <= end:
            bar(axes, command, start)
    for verdict in (e for e in trace if e["ph"] == "i" and start <= e["ts"] <= end + 5e3):
        mark(axes, verdict, start)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.set_ylim(1.6, -0.9)
    axes.set_xlabel("milliseconds")
    figure.savefig(out)


def bar(axes: Any, command: dict[str, Any], start: float) -> None:
    """One command of a lane."""
    lane = LANES.index(command["args"]["lane"])
    left, width = (command["ts"] - start) / 1e3, command["dur"] / 1e3
    axes.barh(lane, width, left=left, height=0.5, color=COLOURS[command["name"]], edgecolor="white")
    if command["name"] != "forget":
        label = f"{command['name']} {command['args']['tokens']}"
        axes.text(left + width / 2, lane, label, ha="center", va="center", fontsize=7, color="white")


def mark(axes: Any, verdict: dict[str, Any], start: float) -> None:
    """One verdict: where it came from, how much of it was accepted."""
    at, args = (verdict["ts"] - start) / 1e3, verdict["args"]
    colour = HIT if args["source"] == "cache" else MISS
    axes.axvline(at, ymax=0.8, color=colour, linewidth=0.8)
    text = f"{args['source']} {args['accepted']}/{args['proposed']}\n+{args['emitted']}"
    axes.text(at, -0.45, text, ha="center", va="bottom", fontsize=7, color=colour)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--first", type=int, default=10)
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("docs/img/rounds.svg"))
    options = parser.parse_args()
    draw(events(options.trace), options.first, options.count, options.out)


if __name__ == "__main__":
    main()

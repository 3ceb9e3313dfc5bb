"""Which CPU cores serve which role."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_runtime.device.cores import available_cores, parse_cores
from ssd_runtime.types import Mode


@dataclass(frozen=True, slots=True)
class Places:
    """The cores of the two lanes; they may overlap."""

    target: frozenset[int]
    draft: frozenset[int]


def place(target: str, draft: str, mode: Mode) -> Places:
    """The cores for `placement:` in `mode`; raises `ConfigError` for a place that is not there.

    `auto`: in mode `ssd` both lanes work at the same time, so each gets one half; in the other modes
    they take turns (or, under `hybrid`, may), so each gets every core.
    """
    cores = sorted(available_cores())
    half = len(cores) // 2
    if mode is Mode.SSD and half:
        halves = frozenset(cores[:-half]), frozenset(cores[-half:])
    else:
        halves = frozenset(cores), frozenset(cores)
    return Places(
        target=halves[0] if target == "auto" else parse_cores(target),
        draft=halves[1] if draft == "auto" else parse_cores(draft),
    )

"""Which device and which CPU cores serve which role."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_runtime.device.cores import available_cores, parse_cores
from ssd_runtime.types import Mode

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class Places:
    """The cores of the two lanes; they may overlap. The devices are `cpu` or `cuda:N`.

    A lane on a GPU has cores too: those of the thread that feeds it.
    """

    target: frozenset[int]
    draft: frozenset[int]
    target_device: str = CPU
    draft_device: str = CPU

    @property
    def are_apart(self) -> bool:
        """Whether one lane's work takes nothing from the other's."""
        if self.target_device == self.draft_device == CPU:
            return self.target.isdisjoint(self.draft)
        return self.target_device != self.draft_device


def place(target: str, draft: str, mode: Mode) -> Places:
    """The cores and devices for `placement:` in `mode`; raises `ConfigError` for what is not there.

    Loads torch only where a GPU is named.

    `auto` is the CPU: in mode `ssd` both lanes work at the same time, so each gets one half; in the
    other modes they take turns (or, under `hybrid`, may), so each gets every core.
    """
    cores = sorted(available_cores())
    half = len(cores) // 2
    if mode is Mode.SSD and half:
        halves = frozenset(cores[:-half]), frozenset(cores[-half:])
    else:
        halves = frozenset(cores), frozenset(cores)
    return Places(
        target=halves[0] if _has_any_core(target) else parse_cores(target),
        draft=halves[1] if _has_any_core(draft) else parse_cores(draft),
        target_device=_device(target),
        draft_device=_device(draft),
    )


def check_place(place: str) -> None:
    """Raise `ConfigError` for a device or cores that are not there."""
    if not _has_any_core(place):
        parse_cores(place)
    _device(place)


def _has_any_core(place: str) -> bool:
    return place == "auto" or _is_gpu(place)


def _is_gpu(place: str) -> bool:
    return place.startswith("cuda")


def _device(place: str) -> str:
    if not _is_gpu(place):
        return CPU
    from ssd_runtime.device.cuda import require_device

    return str(require_device(place))

"""Which device and which CPU cores serve which role."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_runtime.device.cores import available_cores, parse_cores

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


def place(target: str, draft: str) -> Places:
    """The cores and devices for `placement:`; raises `ConfigError` for what is not there.

    Loads torch only where a GPU is named.

    `auto` is the CPU, and every core that the other role was not given. Lanes share cores while both work;
    while one rests the other has them all.
    """
    return Places(
        target=_cores(target, draft),
        draft=_cores(draft, target),
        target_device=_device(target),
        draft_device=_device(draft),
    )


def check_place(place: str) -> None:
    """Raise `ConfigError` for a device or cores that are not there."""
    if not _has_any_core(place):
        parse_cores(place)
    _device(place)


def _cores(place: str, other: str) -> frozenset[int]:
    if not _has_any_core(place):
        return parse_cores(place)
    every = available_cores()
    return every if _has_any_core(other) else (every - parse_cores(other)) or every


def _has_any_core(place: str) -> bool:
    return place == "auto" or _is_gpu(place)


def _is_gpu(place: str) -> bool:
    return place.startswith("cuda")


def _device(place: str) -> str:
    if not _is_gpu(place):
        return CPU
    from ssd_runtime.device.cuda import require_device

    return str(require_device(place))

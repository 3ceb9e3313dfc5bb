"""Named factories, one registry for each kind of part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ssd_runtime.errors import ConfigError, NotAvailableError, PluginError
from ssd_runtime.hooks.kinds import CachePolicy, Observer, Order, Proposer, Sampler, Warper

if TYPE_CHECKING:
    from ssd_runtime.models.linear import Quantizer
    from ssd_runtime.speculation.model_draft import DraftModel

T = TypeVar("T")


class Registry(Generic[T]):
    """The factories of one kind. A factory makes a part when one is needed, from its options."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}

    def register(self, name: str, factory: Callable[..., T]) -> None:
        """Add a factory under a new name; raises PluginError where the name is taken."""
        self.check_free([name])
        self._factories[name] = factory

    def get(self, name: str) -> Callable[..., T]:
        """The factory called `name`; raises NotAvailableError, which lists what there is.

        A factory that does not take its options (TypeError, ValueError) raises ConfigError.
        """
        if name not in self._factories:
            available = ", ".join(self.names()) or "none"
            raise NotAvailableError(f"{self.kind} {name!r} is not available; available: {available}")
        return partial(self._make, name)

    def _make(self, name: str, **options: Any) -> T:
        try:
            return self._factories[name](**options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.kind} {name!r} cannot be made: {error}") from error

    def names(self) -> tuple[str, ...]:
        """Every registered name, sorted."""
        return tuple(sorted(self._factories))

    def check_free(self, names: Iterable[str]) -> None:
        """Raise PluginError where one of `names` is taken."""
        for name in names:
            if name in self._factories:
                raise PluginError(f"{self.kind} {name!r} is registered already; choose another name")

    def update(self, other: Registry[T]) -> None:
        """Take over every factory of `other`."""
        self._factories.update(other._factories)


@dataclass(frozen=True, slots=True)
class Registries:
    """One registry per kind; the field names are those of the hooks, `ssd_register_<field>`."""

    draft_models: Registry[DraftModel] = field(default_factory=lambda: Registry("draft model"))
    proposers: Registry[Proposer] = field(default_factory=lambda: Registry("proposer"))
    samplers: Registry[Sampler] = field(default_factory=lambda: Registry("sampler"))
    warpers: Registry[Warper] = field(default_factory=lambda: Registry("warper"))
    cache_policies: Registry[CachePolicy] = field(default_factory=lambda: Registry("cache policy"))
    quantizers: Registry[Quantizer] = field(default_factory=lambda: Registry("quantizer"))
    orders: Registry[Order] = field(default_factory=lambda: Registry("order"))
    observers: Registry[Observer] = field(default_factory=lambda: Registry("observer"))

    def by_kind(self) -> Iterator[tuple[str, Registry[Any]]]:
        """Field name and registry, in the order above."""
        for kind in fields(self):
            yield kind.name, getattr(self, kind.name)

    def absorb(self, other: Registries) -> None:
        """Take over every factory of `other`; on a double name raise PluginError and take none."""
        theirs = dict(other.by_kind())
        for kind, registry in self.by_kind():
            registry.check_free(theirs[kind].names())
        for kind, registry in self.by_kind():
            registry.update(theirs[kind])

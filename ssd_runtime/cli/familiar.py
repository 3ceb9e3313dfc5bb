"""How an option of another engine becomes a setting of ours, or a hint that names it.

An *alias* is read before the command line proper: it becomes `--set key=value`, nothing where it asks for
what is so anyway, or a `ConfigError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from ssd_runtime.errors import ConfigError

Read = Callable[[str], Sequence[str]]
"""From an option's value to `key=value` settings; raises ValueError with what was expected instead."""

SERVE = "serve"
"""`vllm serve MODEL`; here the daemon is what runs without a command."""


@dataclass(frozen=True, slots=True)
class Alias:
    """Names of one option of other engines. takes_value: else it is a switch, and `read` gets ''."""

    names: tuple[str, ...]
    read: Read
    takes_value: bool = True


def sets(key: str, names: str, **values: str) -> Alias:
    """Sets `key`; `values` translates some of the option's words into ours."""
    return Alias(tuple(names.split()), lambda value: [f"{key}={values.get(value, value)}"])


def switch(setting: str, names: str) -> Alias:
    """Makes the one `key=value` that it stands for."""
    return Alias(tuple(names.split()), lambda value: [setting], takes_value=False)


def always(names: str) -> Alias:
    """A switch for what is so anyway."""
    return Alias(tuple(names.split()), lambda value: [], takes_value=False)


def only(value: str, hint: str, names: str) -> Alias:
    """Taken where it says `value`, which is so anyway; else refused."""

    def read(given: str) -> Sequence[str]:
        if given == value:
            return []
        raise ValueError(f"got {given}, expected {value}; {hint}")

    return Alias(tuple(names.split()), read)


def refused(hint: str, names: str, *, takes_value: bool = True) -> Alias:
    """Not taken: the hint says what there is instead."""

    def read(given: str) -> Sequence[str]:
        raise ValueError(hint)

    return Alias(tuple(names.split()), read, takes_value)


def translated(arguments: Sequence[str], aliases: Sequence[Alias], own_valued: Set[str]) -> list[str]:
    """`arguments` with every alias in them replaced by `--set key=value`.

    own_valued: our own options that take a value, which is never looked at. Raises `ConfigError`.
    """
    by_name = {name: alias for alias in aliases for name in alias.names}
    return list(chain.from_iterable(_pieces(_without_serve(arguments), by_name, own_valued)))


def _without_serve(arguments: Sequence[str]) -> list[str]:
    if not arguments or arguments[0] != SERVE:
        return list(arguments)
    rest = list(arguments[1:])
    named = bool(rest) and not rest[0].startswith("-")
    return ["--set", f"engine.model={rest[0]}", *rest[1:]] if named else rest


def _pieces(
    arguments: Sequence[str], by_name: Mapping[str, Alias], own_valued: Set[str]
) -> Iterator[Sequence[str]]:
    left = iter(arguments)
    for argument in left:
        name, equals, value = argument.partition("=")
        alias = by_name.get(name) if name.startswith("-") else None
        if alias is not None:
            settings = _read(alias, name, _value(alias, name, value if equals else None, left))
            yield tuple(chain.from_iterable(("--set", setting) for setting in settings))
        elif argument in own_valued:
            yield (argument, *_next(left))
        else:
            yield (argument,)


def _value(alias: Alias, name: str, attached: str | None, left: Iterator[str]) -> str:
    """The alias's value, from behind its `=` or from the next argument."""
    if not alias.takes_value:
        if attached is not None:
            raise ConfigError(f"{name}: got the value {attached!r}, expected none: it is a switch")
        return ""
    for value in [attached] if attached is not None else _next(left):
        return value
    raise ConfigError(f"{name}: got no value, expected one behind it")


def _next(left: Iterator[str]) -> list[str]:
    return [value for value in [next(left, None)] if value is not None]


def _read(alias: Alias, name: str, value: str) -> Sequence[str]:
    try:
        return alias.read(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None

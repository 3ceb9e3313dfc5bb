"""What pydantic found wrong, in this project's words: got, expected, and a near name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from ssd_runtime.settings.schema import Settings

PREFIX = "SSD_"
NOT_SETTINGS = frozenset({"SSD_CPU_KERNELS"})
"""Variables that begin like settings and are read elsewhere: this one by `ssd_kernels.cpu.library`."""
"""How the names of our environment variables begin."""
_KINDS = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a string",
    tuple: "a list",
    SecretStr: "a string, in quotes where it looks like a number",
}


def describe(error: ValidationError, origin: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """For each mistake the dotted key that it is about, and what to say; `origin` tells who gave a key."""
    for found in error.errors():
        yield _describe(found, origin)


def _describe(error: Mapping[str, Any], origin: Callable[[str], str]) -> tuple[str, str]:
    path = [str(part) for part in error["loc"]]
    key = ".".join(path)
    if not path:
        key, _, text = str(error["ctx"]["error"]).partition(": ")
        return key, text
    if error["type"] == "extra_forbidden":
        return key, _unknown(path, origin(key))
    if error["type"] == "missing":
        return key, "missing, and it has no default"
    return key, f"got {_shown(error, path)}, expected {_expected(error, path)}"


def _shown(error: Mapping[str, Any], path: Sequence[str]) -> str:
    found = field_at(path)
    is_secret = found is not None and _bare(found.annotation) is SecretStr
    return "a value that is not shown" if is_secret else repr(error["input"])


def field_at(path: Sequence[str]) -> FieldInfo | None:
    """The field at a path of names, or None where the schema has none."""
    model: type[BaseModel] | None = Settings
    found = None
    for name in path:
        found = model.model_fields.get(name) if model else None
        model = _model_of(found)
    return found


def did_you_mean(name: str, allowed: Iterable[str]) -> str:
    """A hint such as "did you mean 'model'? ", or nothing when no allowed name is near."""
    near = get_close_matches(name, list(allowed), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def _unknown(path: Sequence[str], origin: str) -> str:
    parent = _model_of(field_at(path[:-1])) if path[:-1] else Settings
    allowed = sorted(parent.model_fields) if parent else []
    variables = (PREFIX + key.upper().replace(".", "__") for key in _keys(Settings))
    is_variable = origin.startswith(PREFIX)
    hint = did_you_mean(origin, variables) if is_variable else did_you_mean(path[-1], allowed)
    return f"unknown key; {hint}allowed: {', '.join(allowed)}"


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema."""
    for name, found in model.model_fields.items():
        inner = _model_of(found)
        yield f"{prefix}{name}"
        yield from _keys(inner, f"{prefix}{name}.") if inner else ()


def _model_of(found: FieldInfo | None) -> type[BaseModel] | None:
    annotation = found.annotation if found else None
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _expected(error: Mapping[str, Any], path: Sequence[str]) -> str:
    found = field_at(path)
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    if found is None:
        return "a string" if error["type"] == "string_type" else error["msg"]
    in_kind = error["type"] in {"greater_than_equal", "less_than_equal", "greater_than"}
    return _limits(found) if in_kind else allowed_values(found)


def allowed_values(found: FieldInfo) -> str:
    """What a field accepts, in words: "an integer, 0 to 64"."""
    return ", ".join(filter(None, [_kind(found), _limits(found)]))


def _kind(found: FieldInfo) -> str:
    annotation = _bare(found.annotation)
    if get_origin(annotation) is Literal:
        return _one_of(get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _one_of([member.value for member in annotation])
    if _model_of(found):
        return "a name or a mapping" if found.metadata else "a mapping"
    return _KINDS.get(get_origin(annotation) or annotation, "another value")


def _bare(annotation: Any) -> Any:
    """`int` for `int | None`, with or without Annotated."""
    if get_origin(annotation) in {UnionType, Union}:
        annotation = next(kind for kind in get_args(annotation) if kind is not NoneType)
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _one_of(values: Sequence[object]) -> str:
    return "one of " + ", ".join(str(value) for value in values)


def _limits(found: FieldInfo) -> str:
    low = next((limit.ge for limit in found.metadata if isinstance(limit, Ge)), None)
    above = next((limit.gt for limit in found.metadata if isinstance(limit, Gt)), None)
    high = next((limit.le for limit in found.metadata if isinstance(limit, Le)), None)
    if above is not None:
        return f"above {above}" if high is None else f"above {above}, up to {high}"
    if low is None:
        return ""
    return f"at least {low}" if high is None else f"{low} to {high}"

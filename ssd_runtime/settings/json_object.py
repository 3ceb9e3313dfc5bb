"""A JSON object as it came over a wire: strict, and every mistake a `RequestError`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any, NoReturn

from ssd_runtime.errors import RequestError


def json_object(text: str) -> dict[str, Any]:
    """The object that `text` is. No `NaN`, no field twice; raises `RequestError` and nothing else."""
    try:
        data = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_without_duplicates)
    except RecursionError:
        raise RequestError("not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise RequestError(f"got {type(data).__name__} {text[:40]}, expected a JSON object")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"got {name}, which is no number in JSON")


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{twice!r} is given twice")
    return data

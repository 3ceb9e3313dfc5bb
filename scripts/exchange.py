"""Puts a mutation in force in this process: functions get other code, a constant another value."""

from __future__ import annotations

import functools
import gc
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from inspect import unwrap
from pathlib import Path
from types import FunctionType
from typing import Any

from scripts.mutations import Mutation


@dataclass(slots=True)
class Loaded:
    """Of the files below this folder: functions by file and qualified name, and caches of what they returned.

    Found before a process is forked: looking for them touches all that is in memory, which would copy it.
    """

    functions: dict[tuple[str, str], list[FunctionType]] = field(default_factory=lambda: defaultdict(list))
    caches: list[Any] = field(default_factory=list)


def loaded() -> Loaded:
    """All that is there now."""
    found, root = Loaded(), str(Path.cwd())
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(root):
            found.functions[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
        elif type(thing) is functools._lru_cache_wrapper:  # isinstance would ask the thing itself
            code = getattr(thing.__wrapped__, "__code__", None)
            if code is not None and code.co_filename.startswith(root):
                found.caches.append(thing)
    return found


def mutate(mutation: Mutation, there: Loaded) -> None:
    """Exchange functions' code and defaults, or a constant wherever it was imported to."""
    path = str(mutation.path.resolve())
    [module] = [each for each in _modules() if vars(each).get("__file__") == path]
    changed = {**vars(module)}
    exec(compile(mutation.source, path, "exec"), changed)
    for each in there.caches:
        each.cache_clear()
    for name in mutation.functions:
        new = _function(changed, name)
        for function in there.functions[path, name]:
            function.__code__ = new.__code__
            function.__defaults__, function.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
    if not mutation.functions:
        name = mutation.source.splitlines()[mutation.lines[0] - 1].split()[0].rstrip(":")
        old = vars(module)[name]
        for each in _modules():
            if vars(each).get(name) is old:
                setattr(each, name, changed[name])


def _modules() -> list[Any]:
    return [module for module in sys.modules.values() if hasattr(module, "__dict__")]


def _function(namespace: dict[str, Any], name: str) -> FunctionType:
    *holders, last = name.split(".")
    for holder in holders:
        namespace = vars(namespace[holder])
    found = namespace[last]
    found = unwrap(getattr(found, "fget", None) or getattr(found, "__func__", None) or found)
    assert isinstance(found, FunctionType)
    return found

"""Puts a mutation in force in this process: a function gets other code, a constant another value."""

from __future__ import annotations

import functools
import gc
import sys
from collections import defaultdict
from inspect import unwrap
from types import FunctionType
from typing import Any

from scripts.mutations import Mutation

Functions = dict[tuple[str, str], list[FunctionType]]


def functions_by_place() -> Functions:
    """Every function there is, by file and qualified name."""
    found: Functions = defaultdict(list)
    for thing in gc.get_objects():
        if type(thing) is FunctionType:  # isinstance would ask the thing itself
            found[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
    return found


def mutate(mutation: Mutation, functions: Functions) -> None:
    """Exchange a function's code and defaults, or a constant wherever it was imported to."""
    path = str(mutation.path.resolve())
    [module] = [each for each in _modules() if getattr(each, "__file__", "") == path]
    changed = {**vars(module)}
    exec(compile(mutation.source, path, "exec"), changed)
    for thing in gc.get_objects():
        if type(thing) is functools._lru_cache_wrapper:
            thing.cache_clear()
    if mutation.function:
        new = _function(changed, mutation.function)
        for function in functions[path, mutation.function]:
            function.__code__ = new.__code__
            function.__defaults__, function.__kwdefaults__ = new.__defaults__, new.__kwdefaults__
    else:
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

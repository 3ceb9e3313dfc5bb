"""Small changes to a module's source, one at a time: what a good test suite notices.

A change never touches annotations, decorators, docstrings, assertions, the texts of errors and what is
written to the log; nor does it touch protocols, which have no code.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Node = Any
"""An `ast` node whose kind is known by where it is used."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil"}


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change. functions: the qualified names of what holds it, none for a constant of the module.

    place: its line and column. lines: of the statement that it changes, first and last. before, after: what
    stands there. source: the whole module as it is then.
    """

    path: Path
    functions: tuple[str, ...]
    place: tuple[int, int]
    lines: tuple[int, int]
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        """`path:line:column function: before → after`."""
        line, column = self.place
        where = f"{self.path}:{line}:{column} {', '.join(self.functions) or 'constant'}"
        return f"{where}: {_short(self.before)} → {_short(self.after)}"


def mutations(path: Path) -> Iterator[Mutation]:
    """Every change to the module at `path`, in order of its lines."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    for functions, statement, node in _targets(tree):
        for old, new in _changes(node):
            lines = (statement.lineno, statement.end_lineno or statement.lineno)
            before, after = ast.unparse(old), ast.unparse(new) if new else "pass"
            text = after if isinstance(old, ast.stmt | ast.Slice) else f"({after})"
            place = old.lineno, old.col_offset
            yield Mutation(path, functions, place, lines, before, after, _replaced(source, old, text))


def _targets(tree: ast.Module) -> Iterator[tuple[tuple[str, ...], ast.stmt, Node]]:
    """What may be changed, with the function that holds it and the statement that it is part of."""
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            yield (), statement, statement.value
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(statement.name, statement)
        elif isinstance(statement, ast.ClassDef) and "Protocol" not in map(ast.unparse, statement.bases):
            for method in statement.body:
                if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _of_function(f"{statement.name}.{method.name}", method)


def _of_function(name: str, function: Node) -> Iterator[tuple[tuple[str, ...], ast.stmt, Node]]:
    for default in (*function.args.defaults, *function.args.kw_defaults):
        if isinstance(default, ast.Constant):
            yield (name,), function, default
    for statement in function.body:
        for part, node in _walk(statement, statement):
            yield (name,), part, node


def _walk(node: Node, statement: ast.stmt) -> Iterator[tuple[ast.stmt, Node]]:
    if isinstance(node, ast.stmt):
        statement = node
    if isinstance(node, ast.Assert) or _is_text(node):
        return
    yield (statement if not hasattr(statement, "body") else _head(statement)), node
    if isinstance(node, ast.Raise) or _is_log(node):
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "decorator_list", "returns", "ctx", "op", "ops"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _walk(child, statement)


def _head(statement: Node) -> ast.stmt:
    """A compound statement without its body: its first line alone tells whether it ran."""
    head: ast.stmt = copy.copy(statement)
    head.end_lineno = statement.body[0].lineno if isinstance(statement.body, list) else statement.lineno
    return head


def _is_text(node: Node) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def _is_log(node: Node) -> bool:
    return isinstance(node, ast.Expr) and ast.unparse(node).startswith("log.")


def _changes(node: Node) -> Iterator[tuple[Node, Node | None]]:
    """What to put in place of the node, or of its condition; None stands for `pass`."""
    change = _BY_KIND.get(type(node))
    if change is not None:
        for new in change(node):
            yield node, new
    test = getattr(node, "test", None)
    if isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        yield test, ast.UnaryOp(ast.Not(), test)


def _with(node: Node, **fields: Any) -> Node:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _compare(node: Node) -> Iterator[Node]:
    for i, op in enumerate(node.ops):
        for other in COMPARISONS[type(op)]:
            yield _with(node, ops=[*node.ops[:i], other(), *node.ops[i + 1 :]])


def _operation(node: Node) -> Iterator[Node]:
    if type(node.op) in OPERATORS:
        yield _with(node, op=OPERATORS[type(node.op)]())


def _bool_op(node: Node) -> Iterator[Node]:
    yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())


def _unary(node: Node) -> Iterator[Node]:
    if isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _constant(node: Node) -> Iterator[Node]:
    if isinstance(node.value, bool):
        yield _with(node, value=not node.value)
    elif isinstance(node.value, int | float):
        yield _with(node, value=node.value + 1)
    elif isinstance(node.value, str):
        yield _with(node, value=f"XX{node.value}")


def _return(node: Node) -> Iterator[Node]:
    if node.value is not None and not _is_none(node.value):
        yield _with(node, value=ast.Constant(None))


def _assign(node: Node) -> Iterator[Node]:
    if node.value is not None and not _is_none(node.value):
        yield _with(node, value=ast.Constant(None))


def _augmented(node: Node) -> Iterator[Node | None]:
    yield from _operation(node)
    yield ast.Assign([node.target], node.value, lineno=node.lineno)


def _statement(node: Node) -> Iterator[Node | None]:
    yield None


def _call(node: Node) -> Iterator[Node]:
    if isinstance(node.func, ast.Name) and node.func.id in NAMES:
        yield _with(node, func=ast.Name(NAMES[node.func.id]))
    if isinstance(node.func, ast.Attribute) and node.func.attr in NAMES:
        yield _with(node, func=_with(node.func, attr=NAMES[node.func.attr]))
    for i in range(len(node.keywords)):
        if node.keywords[i].arg not in (None, "strict"):
            yield _with(node, keywords=[*node.keywords[:i], *node.keywords[i + 1 :]])


def _slice(node: Node) -> Iterator[Node]:
    for bound in ("lower", "upper"):
        if getattr(node, bound) is not None:
            yield ast.Slice(**{"lower": node.lower, "upper": node.upper, "step": node.step, bound: None})


def _lambda(node: Node) -> Iterator[Node]:
    yield _with(node, body=ast.Constant(None))


def _break(node: Node) -> Iterator[Node]:
    yield ast.Continue()


def _continue(node: Node) -> Iterator[Node]:
    yield ast.Break()


def _is_none(node: Node) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_BY_KIND: dict[type[ast.AST], Callable[[Node], Iterator[Node | None]]] = {
    ast.Compare: _compare,
    ast.BinOp: _operation,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.Return: _return,
    ast.Assign: _assign,
    ast.AnnAssign: _assign,
    ast.AugAssign: _augmented,
    ast.Expr: _statement,
    ast.Delete: _statement,
    ast.Raise: _statement,
    ast.Call: _call,
    ast.Slice: _slice,
    ast.Lambda: _lambda,
    ast.Break: _break,
    ast.Continue: _continue,
}


def _replaced(source: str, node: Node, text: str) -> str:
    """`source` with `text` where `node` stands; only the lines up to it keep their numbers."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
    encoded = source.encode()
    indented = text.replace("\n", "\n" + " " * node.col_offset)
    return (encoded[:start] + indented.encode() + encoded[end:]).decode()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "…"

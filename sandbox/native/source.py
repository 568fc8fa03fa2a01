"""The syntax tree of a Python function, with the line and column numbers of its file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import FunctionType

from .errors import NativeError, Origin


def find(function: FunctionType) -> tuple[Origin, ast.FunctionDef]:
    """The source of *function*. Raises NativeError when there is none (for instance from `exec`)."""
    code = function.__code__
    origin, definitions = _definitions(code.co_filename, _lines(function))
    node = definitions.get((code.co_firstlineno, function.__name__))
    if node is None:
        message = f"the source of {function.__name__} cannot be found; native functions are compiled from it"
        raise NativeError(message, (code.co_filename, code.co_firstlineno, 1, ""))
    return origin, node


def _lines(function: FunctionType) -> tuple[str, ...]:
    return tuple(linecache.getlines(function.__code__.co_filename, function.__globals__))


@lru_cache(maxsize=64)
def _definitions(filename: str, lines: tuple[str, ...]) -> tuple[Origin, dict[tuple[int, str], ast.FunctionDef]]:
    origin = Origin(filename, tuple(line.rstrip("\r\n") for line in lines))
    try:
        tree = ast.parse("".join(lines), filename)
    except SyntaxError:
        return origin, {}
    found = {}
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[first, node.name] = node
    return origin, found


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every statement under *tree*, without descending into expressions."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, name, ())
            yield from children
            waiting += children


def binds(function: FunctionType, name: str) -> bool:
    """Whether the file of *function* binds *name* anywhere, so that it may yet come to exist."""
    return bool(name) and name in _bound_names(function.__code__.co_filename, _lines(function))


@lru_cache(maxsize=64)
def _bound_names(filename: str, lines: tuple[str, ...]) -> frozenset[str]:
    names = set()
    for node in ast.walk(ast.parse("".join(lines), filename)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)

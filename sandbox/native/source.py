"""The syntax tree of a Python function, with the line and column numbers of its file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import FunctionType
from typing import TypeGuard

from .errors import NativeError, Origin

MAX_ENDS = 200
"""How many lines are looked at as the end of a function."""


def find(function: FunctionType) -> tuple[Origin, ast.FunctionDef]:
    """The source of *function*. Raises NativeError when there is none (for instance from `exec`)."""
    code, lines = function.__code__, _lines(function)
    node = _definition(lines, code.co_firstlineno, function.__name__)
    if node is None:
        message = f"the source of {function.__name__} cannot be found; native functions are compiled from it"
        raise NativeError(message, (code.co_filename, code.co_firstlineno, 1, ""))
    return _origin(code.co_filename, lines), node


def _lines(function: FunctionType) -> tuple[str, ...]:
    return tuple(linecache.getlines(function.__code__.co_filename, function.__globals__))


@lru_cache(maxsize=64)
def _origin(filename: str, lines: tuple[str, ...]) -> Origin:
    return Origin(filename, tuple(line.rstrip("\r\n") for line in lines))


def _definition(lines: tuple[str, ...], first: int, name: str) -> ast.FunctionDef | None:
    """The definition of *name* whose decorators, or itself, begin in line *first*."""
    for last in islice(_ends(lines, first), MAX_ENDS):
        tree = _parsed(lines, first, last)
        if tree is not None:
            return next((node for node in statements(tree) if _defines(node, first, name)), None)
    return None


def _ends(lines: tuple[str, ...], first: int) -> Iterator[int]:
    """Where the statement in line *first* may end: before a line that is not indented more, or at the end of the file.

    Too early an end is inside of a string or brackets, or behind a decorator, so that what comes before does not parse.
    """
    depth = _indentation(lines[first - 1]) if first <= len(lines) else 0
    for number, line in enumerate(lines[first:], first):
        if line.strip() and _indentation(line) <= depth and not line.lstrip().startswith("#"):
            yield number
    yield len(lines)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())


def _parsed(lines: tuple[str, ...], first: int, last: int) -> ast.Module | None:
    """The syntax tree of some lines, which keep their numbers; None if they are not whole statements."""
    text = "".join(lines[first - 1 : last])
    head = "if 1:\n" if text[:1].isspace() else "\n"
    try:
        return ast.parse("\n" * (first - 2) + (head if first > 1 else "") + text)
    except SyntaxError:
        return None


def _defines(node: ast.AST, first: int, name: str) -> TypeGuard[ast.FunctionDef]:
    if not isinstance(node, ast.FunctionDef) or node.name != name:
        return False
    return first == min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


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

"""The syntax tree of a Python function, with the line and column numbers of its file."""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType
from typing import TypeGuard

from sandbox.native.front.errors import NativeError, Origin
from sandbox.native.front.text import changed, traits

MAX_ENDS = 200
"""The most lines that are tried as the end of a function."""
_SHARED_NAMES = ("<stdin>", "<string>")
"""Names of text that is in no file, which several texts may have."""
_FUTURES = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def find(function: FunctionType, lines: tuple[str, ...]) -> tuple[Origin, ast.FunctionDef]:
    """The source of *function* in its file's *lines*.

    Raises NativeError when there is none (for instance from `exec`), or when it is not what the function was compiled from.
    """
    code = function.__code__
    node = _definition(lines, code.co_firstlineno, function.__name__)
    if node is None or not _is_of(node, code, lines):
        is_shared = code.co_filename in _SHARED_NAMES
        raise changed(function, "was loaded from it") if lines and not is_shared else _unknown(function)
    return _origin(code.co_filename, lines), node


def _unknown(function: FunctionType) -> NativeError:
    """The error for a function whose source Python does not keep, or keeps under a name that others have, too."""
    code = function.__code__
    message = (
        f"the source of {function.__name__}, which native code is compiled from, cannot be found: define it in a file"
    )
    if code.co_filename in _SHARED_NAMES:
        message += (
            " (Python 3.13 and later also keep what is typed into a shell or given by -c, but not what exec() is given)"
        )
    return NativeError(message, (code.co_filename, code.co_firstlineno, 1, ""))


def _is_of(node: ast.FunctionDef, code: CodeType, lines: tuple[str, ...]) -> bool:
    """Whether *code* was compiled from the definition *node*, in a module of these lines."""
    wanted = traits(code)
    return traits(_code_of(node, code, [])) == wanted or traits(_code_of(node, code, _imported(lines))) == wanted


def _imported(lines: tuple[str, ...]) -> list[str]:
    """The names that a module imports: Python calls methods of those in another way."""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return []
    imports = (node for node in statements(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    names = (alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names)
    return [name for name in names if name != "*"]


def _code_of(node: ast.FunctionDef, like: CodeType, imported: list[str]) -> CodeType:
    """The code object of a definition in which the names in `like.co_freevars` are variables of an enclosing function."""
    tree = ast.parse(f"def around({', '.join(like.co_freevars)}): pass")
    if like.co_freevars:
        tree.body[0].body = [node]  # type: ignore[attr-defined]  # it is the function
    else:
        tree.body = [node]
    tree.body[:0] = ast.parse("".join(f"import {name}\n" for name in imported)).body
    compiled = compile(tree, like.co_filename, "exec", like.co_flags & _FUTURES, dont_inherit=True)
    return next(value for value in _nested(compiled) if value.co_name == node.name)


def _nested(code: CodeType) -> Iterator[CodeType]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield value
            yield from _nested(value)


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
    """Possible ends of the statement in line *first*: before a line that is not indented more, or at the end of the file.

    A wrong end is inside a string or brackets, or after a decorator, so that the lines before it do not parse.
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


@lru_cache(maxsize=64)
def bound_names(lines: tuple[str, ...]) -> frozenset[str]:
    """The names that a file with these *lines* binds anywhere, and that may therefore be defined later."""
    names = set()
    for node in ast.walk(ast.parse("".join(lines))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return frozenset(names)

"""The text of a function's file at the time when it was compiled."""

from __future__ import annotations

import os
from types import CodeType, FunctionType
from typing import Any

from sandbox.native.front.errors import NativeError
from sandbox.process.once import cached_property


class SourceText:
    """The lines of *function*'s file. They are read when they are first needed, and are the same from then on.

    Created with the function, so that an edit between then and the reading is noticed.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function
        self._state = _state(function.__code__.co_filename)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """With their line ends; none if there is no such file.

        Raises NativeError if it has changed, OSError if it cannot be read now.
        """
        import linecache

        filename = self._function.__code__.co_filename
        linecache.checkcache(filename)
        found = tuple(linecache.getlines(filename, self._function.__globals__))
        if _state(filename) != self._state:
            raise changed(self._function, "was defined")
        if not found and self._state is not None:
            open(filename, "rb").close()  # noqa: PTH123 (the line cache has no lines, and no error)
        return found or _kept(self._function) if self._state is None else _shared(filename, found)


def _kept(function: FunctionType) -> tuple[str, ...]:
    """Text that is in no file: from 3.14 on, Python keeps what a shell or -c is given by code object, and not by name."""
    import inspect

    try:
        return tuple(inspect.findsource(function)[0])
    except OSError:
        return ()


_latest: dict[str, tuple[str, ...]] = {}


def _shared(filename: str, lines: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for all functions of a file. Text without a file is not kept: programs generate as much of it as they like."""
    latest = _latest.get(filename)
    if latest != lines:
        latest = _latest[filename] = lines
    return latest


def changed(function: FunctionType, since: str) -> NativeError:
    """The error for a *function* whose file has changed; *since*: a clause such as "was loaded from it"."""
    code = function.__code__
    message = f"{code.co_filename} has changed since {function.__name__} {since}; reload its module"
    return NativeError(message, (code.co_filename, code.co_firstlineno, 1, ""))


def _state(filename: str) -> tuple[int, int] | None:
    """When the file was written, in nanoseconds, and its size; None if there is no file (a notebook's cell)."""
    try:
        status = os.stat(filename)  # noqa: PTH116 (for each function of the runtime)
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_size


def traits(code: CodeType) -> tuple[Any, ...]:
    """A code object's instructions and line numbers, as values that are the same in every process."""
    constants = tuple(map(_constant, code.co_consts))
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    arguments = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    return code.co_name, arguments, code.co_firstlineno, tuple(code.co_lines()), code.co_code, names, constants


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return traits(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return repr(value)

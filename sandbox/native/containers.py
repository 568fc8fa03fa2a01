"""Containers: objects that native functions use by subscript and method, and whose contents Python reads.

The language knows only their interface: a state that the linker fills in, and operations, which are native functions that take
the state's address and words. Containers themselves are defined elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

from sandbox.native.front.annotations import Namespace
from sandbox.native.front.declarations import GlobalVariable
from sandbox.native.front.structs import Struct
from sandbox.native.types import Int, Pointer, Type, void
from sandbox.process.fork import ProcessBound

PREFIX = "map."
"""The prefix of the symbols of states."""


class Operation(NamedTuple):
    """An operation of a container: `function(state, word...)`, which callers give values of the types *parameters*.

    With a *place* the result is the address of a value of that type, else a word that is cut to *result*.
    """

    function: Any  # a NativeFunction: for type checkers, the decorator returns the function unchanged
    parameters: tuple[Type, ...] = ()
    result: Type = void
    place: Type | None = None


class Container(ProcessBound):
    """Base of objects that native functions use as `name[key]`, `name.method(...)` or `name.field`.

    `operations`: name -> Operation; "[]" is the subscript and "." the bare name. `is_shared`: other threads write to the
    same memory, so that `+=` must be atomic.
    """

    def __init__(self, state: Any, operations: Mapping[str, Operation], is_shared: bool = False) -> None:
        frame = _definition_frame(type(self))
        symbol = _free_symbol(f"{PREFIX}{Path(frame.f_code.co_filename).stem}.{frame.f_lineno}")
        self.state_type: Struct = state
        self.variable = GlobalVariable(state, Namespace(frame.f_globals, {}), 0, symbol)
        self.operations = dict(operations)
        self.is_shared = is_shared
        _containers[symbol] = self

    if not TYPE_CHECKING:  # for which these do not exist

        def __getattr__(self, name: str) -> Any:
            wrong = only_native(self, name) or f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(wrong, name=name, obj=self)

        def __setitem__(self, key: Any, value: Any) -> None:
            wrong = only_native(self, "[]") or f"{type(self).__name__!r} object does not support item assignment"
            raise TypeError(wrong)

    @property
    def name(self) -> str:
        """The symbol of its state."""
        return self.variable.symbol

    @property
    def state(self) -> bytes:
        """The bytes that the linker puts into the state's variable."""
        raise NotImplementedError


_containers: WeakValueDictionary[str, Container] = WeakValueDictionary()


def only_native(container: Any, operation: str) -> str:
    """The sentence for an operation of a container that Python does not have; '' if it has, or if there is none of that name."""
    if not isinstance(container, Container) or operation not in vars(container).get("operations", ()):
        return ""
    kind = type(container)
    if operation != "[]" and hasattr(kind, operation):
        return ""
    what = f"storing in {kind.__name__}[...]" if operation == "[]" else f"{kind.__name__}.{operation}()"
    return f"{what} is only for native handlers, and Python reads: make the handler native by @fprobe.native or @kprobes.native"


def find(symbol: str) -> Container:
    """The container whose state is called *symbol*. Raises LookupError if it does not exist any more."""
    try:
        return _containers[symbol]
    except KeyError:
        raise LookupError(f"the map {symbol.removeprefix(PREFIX)} has been deleted") from None


def check_value_type(type_: Type, what: str) -> Type:
    """*type_*, of which a container is to hold values. Raises TypeError naming what cannot be one."""
    if type_ == void or not (isinstance(type_, (Int, Pointer, Struct))):
        raise TypeError(f"{what} must be an integer, a pointer or a struct, not {type_}")
    return type_


def _definition_frame(kind: type) -> Any:
    """The frame that made a container: the first outside of the modules that define its class."""
    modules = {base.__module__ for base in kind.__mro__}
    frame: Any = sys._getframe(2)
    while frame.f_globals.get("__name__") in modules and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _free_symbol(stem: str) -> str:
    candidates = (stem if number == 1 else f"{stem}.{number}" for number in count(1))
    return next(candidate for candidate in candidates if candidate not in _containers)

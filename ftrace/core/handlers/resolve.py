"""Resolving a handler to its code: a Python callable, a C function pointer, or a native function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ftrace.core.handlers.kinds import NO_HANDLER, BoundHandler, HandlerRole, check_callable, foreign_address
from ftrace.core.handlers.python_names import check_names
from ftrace.hit.records import FOREIGN
from sandbox.native import NativeFunction


def resolve(
    handler: Any, role: HandlerRole, of_python: Callable[[Callable[..., Any], HandlerRole], BoundHandler]
) -> BoundHandler:
    """The code of `handler`: None, code already resolved, or one of the three kinds; `of_python` makes a callable's.

    Raises TypeError naming what cannot be a handler, or has the wrong parameters.
    """
    if handler is None:
        return NO_HANDLER
    if isinstance(handler, BoundHandler):
        return handler
    if isinstance(handler, NativeFunction):
        return native(handler, role)
    address = foreign_address(handler)
    if address is not None:
        return BoundHandler(address, FOREIGN, keep=handler, name=f"in C at {address:#x}")
    if callable(handler):
        check_callable(handler, role)
        check_names(handler, role.regs)
        return of_python(handler, role)
    raise TypeError(f"not {role}: {handler!r}; give a callable, a C function pointer or a native function")


def native(handler: NativeFunction, role: HandlerRole) -> BoundHandler:
    """The code of a native handler, which is compiled once in each role."""
    from ftrace.core.handlers.native_handler import linked  # it brings the compiler's front, which few programs need

    return linked(handler, role)

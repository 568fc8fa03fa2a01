"""What may be a handler: a Python callable, a C function pointer, a function of a loaded module, a native function, or a
built-in action. Each becomes an address with what the hit path has to know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from ftrace.handlers.kinds import NO_HANDLER, Resolved, foreign_address
from ftrace.handlers.parameters import check_parameters
from ftrace.hit.records import FOREIGN
from sandbox.native import NativeFunction
from sandbox.process.integers import integer

if TYPE_CHECKING:
    from fprobe.registration import fprobe


class EntryHandler(Protocol):
    """What is called when a function is entered. `regs`: a pt_regs; `entry_data`: a memoryview, or None.

    Non-zero: no exit handler for this call.
    """

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> int | None: ...


class ExitHandler(Protocol):
    """What is called when a function returns. `regs`: a pt_regs; `entry_data`: a memoryview, or None."""

    def __call__(self, fp: fprobe, entry_ip: int, ret_ip: int, regs: Any, entry_data: Any, /) -> object: ...


PARAMETERS = ("fp", "entry_ip", "ret_ip", "regs", "entry_data")


def resolve(handler: Any, is_exit: bool, of_python: Callable[[Any, bool], Resolved]) -> Resolved:
    """The code of `handler`; `of_python` does it for a Python callable.

    Raises TypeError naming what cannot be a handler, or has the wrong number of parameters.
    """
    if handler is None:
        return NO_HANDLER
    if isinstance(handler, Resolved):
        return handler
    if isinstance(handler, NativeFunction):
        return _native(handler, is_exit)
    address = foreign_address(handler)
    if address is not None:
        return Resolved(address, FOREIGN, keep=handler)
    if callable(handler):
        check_parameters(handler, "exit handler" if is_exit else "entry handler", PARAMETERS)
        return of_python(handler, is_exit)
    raise TypeError(f"not a handler: {handler!r}; give a callable, a C function pointer or a native function")


def data_size_of(given: int, *handlers: Any) -> int:
    """Bytes of entry data for `handlers`: `given`, or if that is 0 what native handlers say that they use.

    Raises ValueError if `given` is too little for them.
    """
    given = integer("entry_data_size", given)
    wanted = max((getattr(handler, "data_size", 0) for handler in handlers), default=0)
    if 0 < given < wanted:
        raise ValueError(f"entry_data_size is {given}, and the handlers' entry data takes {wanted} bytes")
    return given or wanted


def _native(handler: Any, is_exit: bool) -> Resolved:
    from fprobe.native_handler import compiled

    return compiled(handler, is_exit)

"""The handlers of an fprobe: their roles, and how a Python one is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrace.core.handlers.kinds import BoundHandler, HandlerRole
from ftrace.core.handlers.python_handler import python_handler
from ftrace.core.handlers.resolve import resolve
from ftrace.hit.records import FOREIGN, PYTHON
from sandbox.native import i32, void
from sandbox.process.integers import integer

if TYPE_CHECKING:
    from ftrace.core.handlers.python_handler import HandlerErrors

_PARAMETERS = ("fp", "entry_ip", "ret_ip", "regs", "entry_data")
_NUMBERS = frozenset({"entry_ip", "ret_ip"})
ENTRY = HandlerRole("entry_handler", _PARAMETERS, _NUMBERS, i32, False, _PARAMETERS.index("regs"))
EXIT = HandlerRole("exit_handler", _PARAMETERS, _NUMBERS, void, True, _PARAMETERS.index("regs"))


def resolve_pair(
    entry: Any, exit_: Any, this: Any, errors: HandlerErrors, data_size: int
) -> tuple[BoundHandler, BoundHandler]:
    """The code of an fprobe's handlers. `this`: the argument `fp` of Python handlers.

    Raises TypeError, which names the object, for one that cannot be a handler or has the wrong parameters.
    """

    def of_python(handler: Callable[..., Any], role: HandlerRole) -> BoundHandler:
        address, cookie, keep = python_handler(handler, this, errors.report, data_size, role.is_exit)
        return BoundHandler(address, FOREIGN | PYTHON, cookie=cookie, keep=keep)

    return resolve(entry, ENTRY, of_python), resolve(exit_, EXIT, of_python)


def data_size_of(given: int, *handlers: Any) -> int:
    """Bytes of entry data for `handlers`: `given`, or if that is 0, the size that native handlers declare.

    Raises ValueError if `given` is too small for them.
    """
    given = integer("entry_data_size", given)
    wanted = max((getattr(handler, "data_size", 0) for handler in handlers), default=0)
    if 0 < given < wanted:
        raise ValueError(
            f"entry_data_size is {given}, but the handlers' entry data takes {wanted} bytes; give {wanted}"
        )
    return given or wanted

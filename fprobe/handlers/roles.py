"""The roles of an fprobe's handlers, and the entry data that they share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ftrace.core.handlers.kinds import HandlerRole
from sandbox.native import i32, void
from sandbox.process.integers import integer

if TYPE_CHECKING:
    pass

_PARAMETERS = ("fp", "entry_ip", "ret_ip", "regs", "entry_data")
_NUMBERS = frozenset({"entry_ip", "ret_ip"})
ENTRY = HandlerRole("entry_handler", _PARAMETERS, _NUMBERS, i32, False, _PARAMETERS.index("regs"))
EXIT = HandlerRole("exit_handler", _PARAMETERS, _NUMBERS, void, True, _PARAMETERS.index("regs"))


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

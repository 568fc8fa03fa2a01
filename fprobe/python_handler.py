"""Python handlers: the callback that native code calls, and what becomes of their exceptions."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ftrace.dispatch import pt_regs

if TYPE_CHECKING:
    from fprobe.registration import fprobe

log = logging.getLogger("fprobe")

_Registers = pt_regs.ctypes
_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64
)


class HandlerErrors:
    """What a probe's handlers have raised: the first exception is kept and reported, the others are counted."""

    def __init__(self) -> None:
        self.first: BaseException | None = None
        self.count = 0

    def add(self, error: BaseException, handler: Any) -> None:
        """Take note of an exception; it never reaches the traced program."""
        self.count += 1
        if self.first is None:
            self.first = error
            name = getattr(handler, "__qualname__", repr(handler))
            log.error("handler %s raised %s: %s", name, type(error).__name__, error, exc_info=error)


def callback_for(fp: fprobe, data_size: int) -> Callable[[Any, bool], Any]:
    """Makes ctypes callbacks of Python handlers of `fp`: handler(fp, entry_ip, ret_ip, regs, entry_data).

    `regs` is a pt_regs whose fields can be read and written; `entry_data` a writable memoryview of bytes, or None.
    """
    buffer = ctypes.c_ubyte * data_size
    registers = _Registers.from_address
    errors = fp.errors

    def make(handler: Callable[..., Any], is_exit: bool) -> Any:
        def call(_fp: int, ip: int, ret_ip: int, regs: int, data: int) -> int:
            try:
                view = memoryview(buffer.from_address(data)).cast("B") if data else None
                result = handler(fp, ip, ret_ip, registers(regs), view)
                return 0 if result is None or is_exit else _as_int(result)
            except BaseException as error:
                errors.add(error, handler)
                return 0

        return _PROTOTYPE(call)

    return make


def _as_int(result: object) -> int:
    if isinstance(result, int):
        return 1 if result else 0
    raise TypeError(f"an entry handler returns an int or None, not {result!r}")

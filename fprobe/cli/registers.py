"""The registers of a hit, for handlers that want the vector registers too, which pt_regs does not have."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

from ftrace.handlers.kinds import Resolved
from ftrace.hit.records import FOREIGN, PYTHON
from sandbox.abi import convention as x86_64

Note = Callable[[int, int, bytes], int]
"""note(entry_ip, ret_ip, registers): takes note of a hit; what it returns is what the handler returns."""

# A callback that declares doubles behind the five arguments of a handler is given, by the calling convention, what
# xmm0 to xmm7 hold: those of the traced function, since the hit path touches none of them before.
_COUNT = x86_64.VECTORS // 8
_PROTOTYPE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, *[ctypes.c_uint64] * 4, *[ctypes.c_double] * _COUNT
)  # fmt: skip
_pack = struct.Struct(f"<{_COUNT}d").pack


def without_vectors(note: Note) -> Callable[..., int]:
    """A handler that gives `note` the general registers."""

    def handler(_fp: Any, ip: int, ret_ip: int, regs: Any, _data: Any) -> int:
        return note(ip, ret_ip, bytes(regs))

    return handler


def with_vectors(note: Note) -> Resolved:
    """A handler that gives `note` the general registers and, behind them, the low 8 bytes of xmm0 to xmm7."""

    def handler(_fp: int, ip: int, ret_ip: int, regs: int, _data: int, *vectors: float) -> int:
        return note(ip, ret_ip, ctypes.string_at(regs, x86_64.REGISTERS) + _pack(*vectors))

    callback = _PROTOTYPE(handler)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return Resolved(address, FOREIGN | PYTHON, keep=callback)

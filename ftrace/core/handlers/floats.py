"""Floating-point arguments and results, which a pt_regs does not hold.

They are in the low halves of vector registers 0 to 7, which are live while a native handler runs. Around a Python or C handler
they are saved in memory at `Task.vectors`, and restored from there: changes reach the function or its caller.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from ftrace.core.handlers.registers import in_python
from ftrace.core.runtime import runtime
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.hit.x86_64.vector_reads import LIVE_VECTORS
from sandbox.native import extern, fn, native, ptr, u8, u64, void
from sandbox.process.integers import S64_MIN, U64_MAX, between, whole

SYMBOLS = ("ftrace_read_xmm", "ftrace_write_xmm", "ftrace_save_xmm")
read_xmm = extern("ftrace_read_xmm", fn[u64, u64])
save_xmm = extern("ftrace_save_xmm", fn[void, ptr[u8]])
write_xmm = extern("ftrace_write_xmm", fn[void, u64, u64])

_FORMATS = {32: ("<f", "<I"), 64: ("<d", "<Q")}


def _word(n: int) -> ctypes.c_uint64:
    """The low half of a vector register, as it is saved."""
    if not 0 <= whole("n", n) < LIVE_VECTORS:
        raise ValueError(f"n is {n}; arguments and results are in vector registers 0 to {LIVE_VECTORS - 1}")
    saved = runtime().image.call("saved_vectors")
    if not saved:
        raise RuntimeError("vector registers can be read only while a handler runs")
    first, distance = saved & ~15, (saved & 15) * 16
    if distance == 16:
        _fill_in(first)
    return ctypes.c_uint64.from_address(first + n * distance)


_IN_AREA, _HEADER, _SSE = 160, 512, 2


def _fill_in(first: int) -> None:
    """Write out registers that are all zero: an XSAVE area only marks them as such."""
    present = ctypes.c_uint64.from_address(first - _IN_AREA + _HEADER)
    if not present.value & _SSE:
        ctypes.memset(first, 0, 256)
        present.value |= _SSE


def _get_xmm(regs: Any, n: int) -> int:
    """The low 8 bytes of vector register `n` (0..7), as an unsigned word.

    In a Python handler of an fprobe or an ftrace_ops: raises ValueError for another register, RuntimeError elsewhere. In a
    native handler of those: `n` is taken modulo 8.
    """
    return _word(n).value


def _set_xmm(regs: Any, n: int, value: int) -> None:
    """Set the low 8 bytes of vector register `n`. A native handler clears the next 8 bytes with that.

    Python raises ValueError for a value that does not fit 64 bits, and as `regs_get_xmm` does.
    """
    _word(n).value = between("value", value, S64_MIN, U64_MAX)


@in_python(_get_xmm)
@native
def regs_get_xmm(regs: ptr[pt_regs], n: u64) -> u64:
    return read_xmm(n)


@in_python(_set_xmm)
@native
def regs_set_xmm(regs: ptr[pt_regs], n: u64, value: u64) -> void:
    write_xmm(n, value)


def _formats(bits: int) -> tuple[str, str]:
    if bits not in _FORMATS:
        raise ValueError(f"bits is {bits!r}; it must be 32 or 64")
    return _FORMATS[bits]


def _as_float(word: int, bits: int) -> float:
    to_float, to_word = _formats(bits)
    return float(struct.unpack(to_float, struct.pack(to_word, word & (1 << bits) - 1))[0])


def float_argument(regs: Any, n: int, bits: int = 64) -> float:
    """The function's n-th floating-point argument, from 0 (at most 7), of 64 or 32 bits; in a Python entry handler.

    Raises ValueError for other numbers, as do the three functions below.
    """
    return _as_float(_get_xmm(regs, n), bits)


def float_return_value(regs: Any, bits: int = 64) -> float:
    """The function's result in a vector register, a double or (32) a float; in a Python exit handler."""
    return _as_float(_get_xmm(regs, 0), bits)


def set_float_argument(regs: Any, n: int, value: float, bits: int = 64) -> None:
    """Have the function find another n-th floating-point argument; in a Python entry handler."""
    to_float, to_word = _formats(bits)
    _set_xmm(regs, n, struct.unpack(to_word, struct.pack(to_float, value))[0])


def set_float_return_value(regs: Any, value: float, bits: int = 64) -> None:
    """Have the function return another double, or (32) float; in a Python exit handler."""
    set_float_argument(regs, 0, value, bits)

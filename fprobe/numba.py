"""Calls of functions that Numba has compiled: arguments by name, results and exceptions, in Python handlers.

    def entry(fp, ip, ret_ip, regs, data):
        print(fprobe.numba.arguments(ip, regs, data))

    def exit(fp, ip, ret_ip, regs, data):
        print(fprobe.numba.outcome(ip, regs, data))

    fprobe.attach("numba:mymodule.sumsq", entry=entry, exit=exit, entry_data_size=fprobe.numba.DATA_SIZE)

Numba must be installed: `pip install fprobe[targets]`.
"""

from __future__ import annotations

import ctypes
import pickle
import struct
from typing import Any, NamedTuple

from ftrace.handlers.floats import regs_get_xmm
from sandbox.numba import inlining
from sandbox.numba.description import Description, describe
from sandbox.numba.layout import Place
from sandbox.numba.values import NOT_PASSED as NOT_PASSED
from sandbox.numba.values import Array as Array
from sandbox.numba.values import read, value_of

DATA_SIZE = 16
"""Bytes of entry data that `arguments` needs to tell `outcome` where the result will be."""

_POINTERS = struct.Struct("<QQ")
_NONE, _STOP_ITERATION = -2, -3


class Outcome(NamedTuple):
    """How a call has ended. `exception` is None if it has returned `result`.

    Arguments of an exception that are only known when it is raised are `...`.
    """

    result: Any
    exception: BaseException | None


def install(*, noinline: bool) -> None:
    """Change how Numba compiles functions from now on; call this before they are compiled.

    `noinline`: calls of compiled functions by compiled functions are not inlined, so that probes see each one. That changes what
    is optimised, and costs time. What is compiled so is apart in Numba's cache. Raises ValueError if nothing is asked for,
    ImportError if Numba is not installed.
    """
    if not noinline:
        raise ValueError("noinline is False, and there is nothing else to install: give noinline=True")
    inlining.keep_calls()


def inlined() -> dict[str, set[str]]:
    """Functions whose calls by other functions are not seen, and the callers into which LLVM has inlined all of them.

    Both by module and qualified name. Nothing is known of code that comes from Numba's cache.
    """
    return inlining.inlined()


def signature(ip: int) -> Any:
    """Numba's signature of the specialisation at `ip`, an entry address. Raises LookupError as `arguments` does."""
    return describe(ip).signature


def arguments(ip: int, regs: Any, data: Any = None) -> dict[str, Any]:
    """The arguments of a call that begins, by name; in a Python entry handler of an fprobe.

    Numbers, strings, tuples and None are what they are; an array is an `Array`. What the compiled code does not use is
    `NOT_PASSED`, since its callers do not pass it. `data`: the handler's entry data, if `outcome` is to be asked.
    Raises LookupError if the function at `ip` is none of Numba's, or a loop or wrapper that has no signature.
    """
    description = describe(ip)
    if data is not None:
        data[:DATA_SIZE] = _POINTERS.pack(regs.di, regs.si)
    words = {place.word.path: _word_at(place, regs) for place in description.places}
    return {name: value_of(kind, words, name) for name, kind in description.arguments.items()}


def _word_at(place: Place, regs: Any) -> int:
    if place.register:
        return int(getattr(regs, place.register))
    if place.vector >= 0:
        return int(regs_get_xmm(regs, place.vector))
    return int.from_bytes(read(regs.sp + place.stack, 8), "little")


def outcome(ip: int, regs: Any, data: Any) -> Outcome:
    """What a call has returned or raised; in a Python exit handler whose entry handler gave `data` to `arguments`.

    Raises LookupError as `arguments` does.
    """
    description = describe(ip)
    result, excinfo = _POINTERS.unpack(bytes(data[:DATA_SIZE]))
    status = ctypes.c_int32(regs.ax & 0xFFFFFFFF).value
    if status == 0:
        return Outcome(_result(description, result), None)
    if status == _NONE:
        return Outcome(None, None)
    return Outcome(None, StopIteration() if status == _STOP_ITERATION else _exception(excinfo))


def _result(description: Description, address: int) -> Any:
    words = {word.path: _in_memory(address + offset, word.size) for word, offset in description.result_words}
    return value_of(description.result_type, words, "result")


def _in_memory(address: int, bits: int) -> int:
    return int.from_bytes(read(address, (bits + 7) // 8), "little")


def _exception(excinfo: int) -> BaseException:
    """Numba keeps an exception's type and constant arguments as a pickle of its own making."""
    try:
        record = _in_memory(excinfo, 64)
        data, size = _in_memory(record, 64), _in_memory(record + 8, 32)
        kind, given = pickle.loads(read(data, size))[:2]
        made: BaseException = kind(*(... if type(it).__module__.startswith("llvmlite") else it for it in given or ()))
        return made
    except (OSError, pickle.UnpicklingError, ValueError, TypeError, EOFError) as error:
        return RuntimeError(f"an exception that cannot be read: {error}")

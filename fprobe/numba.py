"""Arguments, results and exceptions of functions compiled by Numba, for Python handlers.

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

from ftrace.core.handlers.floats import regs_get_xmm
from sandbox.images import compiled
from sandbox.images.numba import inlined as numba_inlined
from sandbox.images.numba import marking
from sandbox.images.numba.description import Description, describe
from sandbox.images.numba.layout import Place
from sandbox.images.numba.values import NOT_PASSED as NOT_PASSED
from sandbox.images.numba.values import Array as Array
from sandbox.images.numba.values import value_of
from sandbox.memory.pages import read

DATA_SIZE = 16
"""Bytes of entry data in which `arguments` stores for `outcome` where the result will be."""

_POINTERS = struct.Struct("<QQ")
_NONE, _STOP_ITERATION = -2, -3


class Outcome(NamedTuple):
    """How a call has ended. `exception` is None if it has returned `result`.

    Arguments of an exception that Numba computes at run time are `...`.
    """

    result: Any
    exception: BaseException | None


def install(*, noinline: bool = False) -> None:
    """Have Numba compile functions with stubs from now on; call this before they are compiled.

    A probe on a stub costs less than one on a function without. `noinline`: also do not inline calls between compiled functions,
    so that probes see every call. This prevents optimisations and costs time. Code compiled in this way has entries of its own
    in Numba's cache. Raises ImportError if Numba is not installed.
    """
    marking.mark(marking.STUBS, *[marking.NOINLINE] * noinline)


def inlined() -> dict[str, set[str]]:
    """Functions whose calls probes cannot see, because LLVM has inlined or left them out: function -> the callers.

    Both are given by module and qualified name. A loop for NumPy into which its function was inlined is a caller, too: there a
    hit is a run of the loop. Where only some of a caller's calls were inlined, it is a caller if its code is not from Numba's
    cache.
    """
    whole, partly = numba_inlined.inlined(compiled.source.images(), lambda _: True)
    return {name: whole.get(name, set()) | partly.get(name, set()) for name in whole | partly}


def signature(ip: int) -> Any:
    """Numba's signature of the specialisation at `ip`, an entry address. Raises LookupError as `arguments` does."""
    return describe(ip).signature


def arguments(ip: int, regs: Any, data: Any = None) -> dict[str, Any]:
    """The arguments of a call, by name. To be called in a Python entry handler of an fprobe.

    Numbers, strings, tuples and None are returned as such; an array as an `Array`. An argument that the compiled code does
    not use is `NOT_PASSED`, since callers do not pass it. `data`: the handler's entry data, needed by `outcome`.
    Raises LookupError if the function at `ip` is not Numba's, or is a loop or wrapper without a signature.
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
    """The result or exception of a call. To be called in a Python exit handler whose entry handler passed `data` to `arguments`.

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
    """The exception that `excinfo` points to: Numba stores its type and constant arguments as a pickle."""
    try:
        record = _in_memory(excinfo, 64)
        data, size = _in_memory(record, 64), _in_memory(record + 8, 32)
        kind, given = pickle.loads(read(data, size))[:2]
        made: BaseException = kind(*(... if type(it).__module__.startswith("llvmlite") else it for it in given or ()))
        return made
    except (OSError, pickle.UnpicklingError, ValueError, TypeError, EOFError) as error:
        return RuntimeError(f"an exception that cannot be read: {error}")

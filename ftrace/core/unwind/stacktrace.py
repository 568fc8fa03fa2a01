"""Stack traces from inside handlers, with real return addresses in place of the stubs' addresses."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from ftrace.core.runtime import runtime
from ftrace.core.tracer import tracer
from ftrace.core.unwind.code_map import unwind_tables
from ftrace.hit.nodes import EXIT_FROM_STUB
from ftrace.hit.x86_64.stubs import RETURN_POINT, SLOW_RETURN, STUB_SIZE
from sandbox.process import hooks
from sandbox.process.integers import U64_MAX, integer, whole
from sandbox.symbols.table import symbol_table
from sandbox.threads.tasks import Node

DEPTH = 64
_DEEPEST = 4096
"""The maximum number of frames that are examined, including the interpreter's."""
_ON_THE_WAY_IN = (RETURN_POINT, SLOW_RETURN)


class Frame(NamedTuple):
    """A function on the stack: an address in it, and its name with offset, size and module."""

    address: int
    name: str

    def __str__(self) -> str:
        return self.name


class ReturnAddress(NamedTuple):
    """The real return address of a return slot. `cur`: where a search for the same slot continues; 0 if none was found."""

    address: int
    cur: int


def rethook_find_ret_addr(frame: int, cur: int = 0) -> ReturnAddress:
    """The real return address of the call of this thread whose return slot is at the address `frame`.

    `cur`: 0 at first, then the `cur` of the last result. The address is 0 if no hooked call has that slot, or none in progress
    has that `cur`. Raises OSError(EINVAL) for what is no address.
    """
    slot, after = integer("frame", frame, 0, U64_MAX), integer("cur", cur, 0, U64_MAX)
    found = runtime().image.call("rethook_find_ret_addr", slot, after) & U64_MAX
    return ReturnAddress(Node.ctypes.from_address(found).parent, found) if found else ReturnAddress(0, 0)


def is_rethook_trampoline(address: int) -> bool:
    """Whether a return slot that holds `address` belongs to a hooked call."""
    return _is_stub(address) and address % STUB_SIZE == RETURN_POINT + EXIT_FROM_STUB


def stack_trace_save(size: int = DEPTH, skip: int = 0) -> list[int]:
    """Addresses of the functions on this thread's stack, innermost first; at most `size` of them, without the first `skip`.

    In an entry handler the trace begins with the function that was hit, in an exit handler with the function that is returned
    to. Real return addresses follow; the last is in the function that Python called. Outside handlers it is the whole stack.
    Raises ValueError for a negative number.
    """
    return _part(_trace(), size, skip)


def stack_trace_save_regs(regs: Any, size: int = DEPTH, skip: int = 0) -> list[int]:
    """Like `stack_trace_save`, in a handler, starting from its `regs`. The first address is regs.ip.

    Raises ValueError for a negative number.
    """
    return _part([regs.ip, *_trace()[1:]], size, skip)


def _part(trace: list[int], size: int, skip: int) -> list[int]:
    size, skip = whole("size", size), whole("skip", skip)
    if size < 0 or skip < 0:
        raise ValueError(f"size is {size} and skip is {skip}; neither may be negative")
    return trace[skip : skip + size]


def stack_trace(size: int = DEPTH, skip: int = 0) -> list[Frame]:
    """`stack_trace_save` with names."""
    return [Frame(address, symbol_table.describe(address)) for address in stack_trace_save(size, skip)]


@cache
def _unwinder() -> Any:
    function = ctypes.CDLL(None)["backtrace"]
    function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int), ctypes.c_int
    return function


def _trace() -> list[int]:
    """The frames of the program: from the innermost hit outwards, to the call from Python.

    The handler's own Python code may run in perf's trampolines or in code of the interpreter's JIT, at which the C library's
    unwinder ends. Then the walk begins at the registers of the hit.
    """
    addresses = _backtrace()
    if any(_is_own(address) for address in addresses):
        return _of_program(addresses)
    return _from_hit() or addresses


def _from_hit() -> list[int]:
    """The stack of the innermost hit whose handler runs in this thread; empty outside of handlers."""
    unwind_tables().refresh()
    entries = (ctypes.c_uint64 * _DEEPEST)()
    count = runtime().image.call("ftrace_walk_hit", ctypes.addressof(entries), _DEEPEST)
    return entries[:count]


def _backtrace() -> list[int]:
    """Every return address on the stack, as the C library's unwinder finds them."""
    frames = (ctypes.c_void_p * _DEEPEST)()
    count = _unwinder()(frames, _DEEPEST)
    return [address or 0 for address in frames[:count]]


def _is_stub(address: int) -> bool:
    return any(block.stub_text is not None and address in block.stub_text for block in tracer().table.patched_blocks())


def _of_program(addresses: list[int]) -> list[int]:
    """The addresses without our own code: from the innermost hit outwards, to the call from Python."""
    guard = runtime().image.address("sandbox_guard")
    after_guard = next(symbol.end for symbol in runtime().image.symbols if symbol.address == guard)
    inside = [index for index, address in enumerate(addresses) if _is_own(address)]
    first = inside[0] if inside and not guard <= addresses[inside[0]] < after_guard else 0
    found: list[int] = []
    for address in addresses[first:]:
        if guard <= address < after_guard:
            break
        if not _is_own(address):
            found += _without_stub(address)
    return found


def _is_own(address: int) -> bool:
    return any(has(address) for has in hooks.own_code)


def _without_stub(address: int) -> list[int]:
    """How a trace shows an address: one in the entry half of a stub as the function, one in its return half not at all."""
    if not _is_stub(address):
        return [address]
    stub = address & -STUB_SIZE
    return [ctypes.c_uint64.from_address(stub).value] if address - stub in _ON_THE_WAY_IN else []


__all__ = [
    "DEPTH",
    "Frame",
    "ReturnAddress",
    "is_rethook_trampoline",
    "rethook_find_ret_addr",
    "stack_trace",
    "stack_trace_save",
    "stack_trace_save_regs",
]

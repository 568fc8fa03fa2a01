"""Direct calls: a user's function that a site calls, with the traced function's registers and stack.

The site still jumps to its stub: the callback of an ops passes the call on to the direct function, after the handlers of the
site's other probes. A site has at most one direct function, and none if an ops modifies ip.
"""

from __future__ import annotations

import ctypes
import errno
from typing import Any

from ftrace.core.ops import ftrace_free_filter, ftrace_ops, register_ops, unregister_ftrace_function
from ftrace.core.ops_flags import FTRACE_OPS_FL_DIRECT, FTRACE_OPS_FL_INITIALIZED
from ftrace.core.probe import NativeProbe
from ftrace.core.tracer import tracer
from ftrace.hit.records import CALLBACK, COMPLETE, HAS_ENTRY
from ftrace.hit.x86_64.direct import DIRECT_CALL
from ftrace.hit.x86_64.pt_regs import pt_regs
from ftrace.hit.x86_64.stubs import SITE_SIZE
from sandbox.memory.mappings import code_address
from sandbox.native import *
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

direct_call_point = extern("ftrace_direct_call", fn[void])


@struct
class DirectCall(Structure):
    """The argument of a direct ops' callback: where to continue."""

    target: u64


@native
def call_direct_funcs(ip: u64, parent_ip: u64, call: u64, registers: u64, data: u64) -> i32:
    """The callback of every direct ops."""
    regs = cast(ptr[pt_regs], registers)
    regs.r10 = load(cast(ptr[u64], call), "relaxed")
    regs.r11 = ip + SITE_SIZE
    regs.ip = cast(u64, direct_call_point)
    return 0


@once
def _image() -> NativeImage:
    image = NativeImage.of(Unit("ftrace-direct", [call_direct_funcs], assembly=DIRECT_CALL))
    image.publish()
    return image


def register_ftrace_direct(ops: ftrace_ops, address: int) -> None:
    """Have every function that `ops` selects begin by calling the code at `address`.

    That code finds the stack as after a call at the site: the address after the site on top, then the function's return
    address. It must preserve every register that may hold an argument, including vector registers; its `ret` continues in
    the function. Raises OSError: EINVAL if there is no code at `address`, or the ops has a func, is registered, or has
    no filter; EBUSY if one of the functions has a direct function already or an ops that modifies ip; ENODEV if ftrace
    is dead.
    """
    address = code_address("address", address)
    tracing = tracer()
    with tracing.reclaimer.deferred(), tracing.table.lock:
        _register(ops, address)


def _register(ops: ftrace_ops, address: int) -> None:
    if ops.func is not None or ops.enabled:
        raise OSError(errno.EINVAL, "this ftrace_ops has a func or is registered; use a new one")
    if not ops.flags & FTRACE_OPS_FL_INITIALIZED or ops.func_hash.for_everything:
        raise OSError(
            errno.EINVAL, "a direct function needs an ftrace_ops with a filter; set one before registering it"
        )
    call = DirectCall.ctypes()
    call.target = address
    ops.func, ops.direct_call, ops.private_direct = _image().address("call_direct_funcs"), address, call
    ops.flags |= FTRACE_OPS_FL_DIRECT
    ops.detach = lambda: unregister_ftrace_direct(ops, ops.direct_call)
    try:
        register_ops(ops, _native_half(ops, call))
    except BaseException:
        _forget(ops)
        raise


def _native_half(ops: ftrace_ops, call: Any) -> NativeProbe:
    return NativeProbe(
        tracer().table.lines,
        call,
        kind=CALLBACK | HAS_ENTRY,
        flags=COMPLETE,
        entry=ops.func,
        entry_cookie=ctypes.addressof(call),
    )


def _forget(ops: ftrace_ops) -> None:
    ops.func, ops.direct_call, ops.private_direct = None, 0, None
    ops.flags &= ~FTRACE_OPS_FL_DIRECT


def _check(ops: ftrace_ops) -> None:
    if not ops.flags & FTRACE_OPS_FL_DIRECT or not ops.enabled:
        raise OSError(errno.EINVAL, "this ftrace_ops is not registered with a direct function; register it first")


def unregister_ftrace_direct(ops: ftrace_ops, address: int, free_filters: bool = False) -> None:
    """Remove the direct function. Calls in progress continue; its code must stay until they have left it.

    Raises OSError(EINVAL) if the ops is not registered with the direct function at `address`.
    """
    tracing = tracer()
    with tracing.reclaimer.deferred(), tracing.table.lock:
        _check(ops)
        if address != ops.direct_call:
            raise OSError(errno.EINVAL, f"the direct function is at {ops.direct_call:#x}, not at {address:#x}")
        unregister_ftrace_function(ops)
        _forget(ops)
        if free_filters:
            ftrace_free_filter(ops)


def modify_ftrace_direct(ops: ftrace_ops, address: int) -> None:
    """Call another function from now on, at all of the ops' sites, without a moment in which none is called.

    Raises OSError(EINVAL) if the ops is not registered with a direct function, or there is no code at `address`.
    """
    with tracer().table.lock:
        _check(ops)
        address = code_address("address", address)
        ops.private_direct.target = address  # one aligned store
        ops.direct_call = address

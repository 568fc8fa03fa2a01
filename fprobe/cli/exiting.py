"""Notice that the program calls `exit`, and delay its thread so that a summary can be printed.

A function that is registered with the C library cannot be removed: it is called at every exit, even after Python has been
finalised. So it is native code, which calls Python only while `Listener.interested` is set.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sandbox.loading.native_image import NativeImage
from sandbox.native import Unit, fn, global_var, i32, native, struct, u64, void


@struct
class Listener:
    """`interested`: 1 while `call` may be called."""

    interested: u64
    call: fn[void, i32]


listener = global_var(Listener, name="exit_listener")


@native
def program_exits(status: i32, argument: u64) -> void:
    if listener.interested != 0:
        listener.call(status)


@cache
def _image() -> NativeImage:
    image = NativeImage.of(Unit("fprobe-exiting", [program_exits]))
    ctypes.CDLL(None).on_exit(ctypes.c_void_p(image.address("program_exits")), None)
    return image


@contextmanager
def told_of_exit(call: Callable[[int], None]) -> Iterator[None]:
    """Inside the block, a thread that calls `exit` calls `call(status)` first.

    To finish work in Python, `call` must not return before the process ends.
    """
    record: Any = Listener
    native_listener = record.ctypes.from_address(ctypes.addressof(_image().variable("exit_listener")))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_int32)(call)
    native_listener.call = ctypes.cast(callback, ctypes.c_void_p).value
    native_listener.interested = 1
    try:
        yield
    finally:
        native_listener.interested = 0

"""Telling the process's unwinder, and debuggers, about the stubs."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

from ftrace.x86_64 import unwind
from sandbox import gdbjit, tasks
from sandbox.debugimage import CodeSymbol, debug_image

if TYPE_CHECKING:
    from ftrace.runtime import Runtime


@cache
def _registrars() -> tuple[Any, Any]:
    """How the unwinder that C++ code of this process uses takes descriptions, and gives them back."""
    try:
        library = ctypes.CDLL("libgcc_s.so.1")
    except OSError:
        return _nobody, _nobody
    functions = (library["__register_frame"], library["__deregister_frame"])
    for function in functions:
        function.argtypes, function.restype = (ctypes.c_void_p,), None
    return functions


def _nobody(_section: object) -> None:
    """There is no unwinder to tell."""


class FrameDescription:
    """The description of a module's stubs, registered with unwinder and debuggers until `withdraw`."""

    def __init__(self, runtime: Runtime, name: str, start: int, size: int) -> None:
        fields = {"TOP": tasks.Task.offset("top"), "BOTTOM": tasks.Task.offset("bottom")}
        fields |= {name.upper(): tasks.Node.offset(name) for name in ("frame", "stub", "parent")}
        place = unwind.return_address_place(runtime.slab, tasks.STRIDE, tasks.NODE, fields)
        section = unwind.frame_section(start, size, place)
        self._section = ctypes.create_string_buffer(section, len(section))
        _registrars()[0](self._section)
        where = ctypes.addressof(self._section)
        image = debug_image(start, size, [CodeSymbol(f"{name}.stubs", start, size)], section, where)
        self._seen_by_debuggers = gdbjit.register(image)

    def withdraw(self) -> None:
        """Take the description back."""
        _registrars()[1](self._section)
        if self._seen_by_debuggers is not None:
            self._seen_by_debuggers.withdraw()

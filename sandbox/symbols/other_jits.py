"""Code that other compilers than llvmlite's LLVM show to debuggers: the GDB JIT interface of other libraries in this process.

They may change their lists at any time, so memory is read through the kernel, and anything that is not an ELF image is
ignored.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sandbox.elf.tables import ElfError
from sandbox.memory.pages import read
from sandbox.symbols.gdbjit import (
    DESCRIPTOR,
    LLVMS_LIBRARY,
    REGISTER,
    UNREGISTERED,
    Descriptor,
    Entry,
    JitEntry,
    static_symbols,
)
from sandbox.symbols.libraries import libraries

_MOST = 1 << 16
"""Entries of one list, and kilobytes of one image, that are read at most."""


class Interface(NamedTuple):
    """The addresses of a library's list, and of the function that it calls when the list has changed."""

    descriptor: int
    hook: int

    def relevant(self) -> tuple[int, bool] | None:
        """In the hook: the address of the entry that is reported, and whether it is being removed."""
        descriptor = Descriptor.from_buffer_copy(read(self.descriptor, ctypes.sizeof(Descriptor)))
        entry = ctypes.cast(descriptor.relevant, ctypes.c_void_p).value
        return (entry, descriptor.action == UNREGISTERED) if entry else None


def interfaces() -> list[Interface]:
    """The interfaces of all loaded libraries except LLVM's."""
    found = ((library.base, _found_in(library.path)) for library in libraries() if library.name != LLVMS_LIBRARY)
    return [Interface(base + found[0], base + found[1]) for base, found in found if found]


@cache
def _found_in(path: Path) -> tuple[int, int] | None:
    """Offsets of both symbols in the file; None if it does not have them."""
    with contextlib.suppress(
        OSError, ElfError, ValueError, BufferError
    ):  # views of the file are in the traceback of an ElfError
        values = static_symbols(path, (DESCRIPTOR, REGISTER))
        if values.get(DESCRIPTOR) and values.get(REGISTER):
            return values[DESCRIPTOR], values[REGISTER]
    return None


def listed() -> dict[JitEntry, bytes]:
    """The present entries of all lists, each list's oldest first, with the images."""
    found: dict[JitEntry, bytes] = {}
    for interface in interfaces():
        with contextlib.suppress(OSError):
            found |= reversed(_entries(interface).items())
    return found


def _entries(interface: Interface) -> dict[JitEntry, bytes]:
    descriptor = Descriptor.from_buffer_copy(read(interface.descriptor, ctypes.sizeof(Descriptor)))
    address, found = ctypes.cast(descriptor.first, ctypes.c_void_p).value, dict[JitEntry, bytes]()
    while address and len(found) < _MOST:
        entry = Entry.from_buffer_copy(read(address, ctypes.sizeof(Entry)))
        shown = JitEntry(address, entry.image or 0, entry.size)
        if shown in found:
            break
        found[shown] = read(shown.image, shown.size) if shown.size <= _MOST << 10 else b""
        address = ctypes.cast(entry.next, ctypes.c_void_p).value
    return found

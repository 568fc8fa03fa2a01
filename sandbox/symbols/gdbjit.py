"""The GDB JIT interface: debuggers learn the names (and lines, where there is debug information) of loaded code.

A debugger finds `__jit_debug_descriptor`, a list of ELF images in memory, and plants a breakpoint in
`__jit_debug_register_code`, which is called whenever the list changes. LLVM's library contains both, but does not
export them, so their addresses come from its symbol table on disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

from sandbox.elf import tables as elf
from sandbox.process import fork
from sandbox.process.once import once

DESCRIPTOR, REGISTER = "__jit_debug_descriptor", "__jit_debug_register_code"
_NOACTION, _REGISTERED, UNREGISTERED = 0, 1, 2
T = TypeVar("T")
OPT_OUT = "FPROBE_NO_GDB_JIT"
"""Set this environment variable to keep loaded code from debuggers."""

LLVMS_LIBRARY = "libllvmlite.so"
is_wanted = [True]
"""Whether LLVM's library is loaded for the interface. Without it there is none, and no code of LLVM's, until it is there."""


_libc = ctypes.CDLL(None)
_libc.malloc.restype, _libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
_libc.free.argtypes = (ctypes.c_void_p,)


class Entry(ctypes.Structure):
    """struct jit_code_entry."""


EntryPointer = ctypes.POINTER(Entry)
"""Kept: ctypes forgets its pointer types when a sub-interpreter of Python 3.11, or one before, imports it."""
Entry._fields_ = [
    ("next", EntryPointer),
    ("previous", EntryPointer),
    ("image", ctypes.c_void_p),
    ("size", ctypes.c_uint64),
]


class Descriptor(ctypes.Structure):
    """struct jit_descriptor."""

    _fields_ = [
        ("version", ctypes.c_uint32),
        ("action", ctypes.c_uint32),
        ("relevant", EntryPointer),
        ("first", EntryPointer),
    ]


class Registration:
    """An ELF image that debuggers see until `withdraw` is called.

    Its memory is not Python's: LLVM walks the list once more when the process ends, after the interpreter has.
    """

    def __init__(self, image: bytes, interface: _Interface) -> None:
        self._memory = _libc.malloc(ctypes.sizeof(Entry) + len(image))
        if not self._memory:
            raise MemoryError(f"cannot allocate {len(image)} bytes for an image for debuggers")
        contents = self._memory + ctypes.sizeof(Entry)
        ctypes.memmove(contents, image, len(image))
        self._entry = Entry.from_address(self._memory)
        self._entry.next = self._entry.previous = None
        self._entry.image, self._entry.size = contents, len(image)
        self._interface = interface
        _own_entries.add(self._memory)
        interface.insert(self._entry)

    def withdraw(self) -> None:
        """Notify debuggers that the code has been unmapped."""
        self._interface.remove(self._entry)
        _own_entries.discard(self._memory)
        _libc.free(self._memory)


class JitEntry(NamedTuple):
    """An object as debuggers see it: addresses of its entry in the list and of its ELF image, and the image's size."""

    entry: int
    image: int
    size: int


OWN = "_is_fprobes"
"""The name of an attribute that only engines of this package have."""

_own_entries: set[int] = set()
"""Addresses of the entries that `register` has made."""

own_code: set[int] = set()
"""Addresses of functions that engines of this package have compiled: LLVM lists their objects like anybody's."""


class _Making(threading.local):
    depth = 0


_making = _Making()


@contextlib.contextmanager
def making_own() -> Iterator[None]:
    """Held while this package's own code is compiled and added to `own_code`, so that it is not taken for another JIT's."""
    from llvmlite.binding import ffi

    with ffi.lib._lock:
        _making.depth += 1
        try:
            yield
        finally:
            _making.depth -= 1


def is_making_own() -> bool:
    """Whether this thread is inside `making_own`."""
    return _making.depth > 0


def listed(read: Callable[[list[JitEntry]], T]) -> T:
    """The result of `read` for the list of all objects except those of `register`, oldest first.

    While it runs, nobody changes the list or the objects.
    """
    interface = _interface()
    return interface.read(read) if interface else read([])


def newest() -> int:
    """The address of the list's newest entry; 0 if there is none. Takes no lock."""
    interface = _interface()
    return interface.newest() if interface else 0


def hook_address() -> int:
    """The address of the function that is called when the list has changed; 0 if there is none."""
    interface = _interface()
    return interface.hook if interface else 0


def relevant() -> tuple[int, bool] | None:
    """In the hook: the address of the entry that is reported, and whether it is being removed."""
    interface = _interface()
    return interface.relevant() if interface else None


def register(image: bytes) -> Registration | None:
    """Show `image` to debuggers; None if that was opted out of, or LLVM's library does not have the interface."""
    if os.environ.get(OPT_OUT):
        return None
    interface = _interface()
    return Registration(image, interface) if interface else None


class _Interface:
    def __init__(self, descriptor: int, register: int) -> None:
        self._descriptor = Descriptor.from_address(descriptor)
        self.hook = register
        self._notify = ctypes.CFUNCTYPE(None)(register)
        self._lock = fork.renew(threading.RLock())
        self._hold_during_llvms_calls()

    def _hold_during_llvms_calls(self) -> None:
        """LLVM's calls change the list as well, without the GIL. (Its own lock is not free in the child of every fork.)"""
        from llvmlite.binding import ffi

        with ffi.lib._lock:
            self._lock.acquire()  # the end of this block releases it
            ffi.register_lock_callback(self._lock.acquire, self._lock.release)

    def read(self, read: Callable[[list[JitEntry]], T]) -> T:
        with self._lock:
            found, entry = [], self._descriptor.first
            while entry:
                contents = entry.contents
                if ctypes.addressof(contents) not in _own_entries:
                    found.append(JitEntry(ctypes.addressof(contents), contents.image or 0, contents.size))
                entry = contents.next
            return read(found[::-1])

    def newest(self) -> int:
        return ctypes.cast(self._descriptor.first, ctypes.c_void_p).value or 0

    def relevant(self) -> tuple[int, bool] | None:
        entry = self._descriptor.relevant
        return (ctypes.addressof(entry.contents), self._descriptor.action == UNREGISTERED) if entry else None

    def insert(self, entry: Entry) -> None:
        with self._lock:
            first = self._descriptor.first
            entry.next = first
            if first:
                first.contents.previous = EntryPointer(entry)
            self._descriptor.first = EntryPointer(entry)
            self._announce(entry, _REGISTERED)

    def remove(self, entry: Entry) -> None:
        with self._lock:
            if entry.previous:
                entry.previous.contents.next = entry.next
            else:
                self._descriptor.first = entry.next
            if entry.next:
                entry.next.contents.previous = entry.previous
            self._announce(entry, UNREGISTERED)

    def _announce(self, entry: Entry, action: int) -> None:
        self._descriptor.relevant = EntryPointer(entry)
        self._descriptor.action = action
        self._notify()
        self._descriptor.relevant = None
        self._descriptor.action = _NOACTION


_VALUES = struct.Struct("<QQ")


def _interface() -> _Interface | None:
    if not is_wanted[0] and not any(name.endswith("llvmlite.binding.ffi") for name in list(sys.modules)):
        return None
    return _find_interface()


@once
def _find_interface() -> _Interface | None:
    from llvmlite.binding import ffi

    found = _found_before(Path(ffi.lib._name))
    if not all(found):
        return None
    base = elf.load_base(ffi.lib._handle)
    return _Interface(base + found[0], base + found[1])


def _found_before(path: Path) -> tuple[int, int]:
    """Values of the descriptor and of the hook in that version of the file; 0 where it has none. Searched for once."""
    from sandbox.compile.cache import default_cache
    from sandbox.compile.cache import key as cache_key

    state = path.stat()
    cache, key = default_cache(), cache_key("gdb-jit", str(path), str(state.st_size), str(state.st_mtime_ns))
    stored = cache.get(key)
    if stored is None:
        values = static_symbols(path, (DESCRIPTOR, REGISTER))
        stored = _VALUES.pack(values.get(DESCRIPTOR, 0), values.get(REGISTER, 0))
        cache.put(key, stored)
    descriptor, register = _VALUES.unpack(stored)
    return descriptor, register


def static_symbols(path: Path, names: Iterable[str]) -> dict[str, int]:
    """Values of the symbols `names` in the symbol tables of the ELF file at `path`; those not there are left out.

    Searches the tables as bytes, which takes milliseconds where reading them takes seconds. Raises OSError, ElfError.
    """
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as view:
        sections = elf.ElfFile(memoryview(view)).sections
        tables = [section for section in sections if section.type in (elf.SHT_DYNSYM, elf.SHT_SYMTAB)]
        found = {name: _value_of(view, table, sections[table.link], name) for table in tables for name in names}
    return {name: value for name, value in found.items() if value is not None}


def _value_of(view: mmap.mmap, table: elf.Section, strings: elf.Section, name: str) -> int | None:
    start = view.find(b"\0" + name.encode() + b"\0", strings.offset, strings.offset + strings.size)
    if start < 0:
        return None
    wanted = struct.pack("<I", start + 1 - strings.offset)
    at, end = table.offset, table.offset + table.size
    while (at := view.find(wanted, at, end)) >= 0:
        if (at - table.offset) % elf.SYMBOL.size == 0:
            return int(elf.SYMBOL.unpack_from(view, at)[4])
        at += 1
    return None

"""libunwind (nongnu.org), which some programs unwind by: stack traces, and exceptions if they are linked with it.

It finds frame descriptions in the files of libraries, and not those that are registered with libgcc. Of code without a file it
has a list of its own (libunwind-dynamic.h).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

from sandbox.process import fork
from sandbox.symbols.loaded import loaded

_NAME = b"libunwind.so.8"
_REMOTE_TABLE = 2
"""UNW_INFO_FORMAT_REMOTE_TABLE: a table as in .eh_frame_hdr."""
_BEFORE_ALL = -1 << 31
"""An offset in the table from which on its only description is for all addresses."""


class _Entry(ctypes.Structure):
    """A line of the table. `start` and `description` are counted from the segment's base."""

    _fields_ = [("start", ctypes.c_int32), ("description", ctypes.c_int32)]


class _Dynamic(ctypes.Structure):
    """A `unw_dyn_info_t` with the size of a table in words."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("next", "prev", "start", "end", "gp")),
        *((name, ctypes.c_int32) for name in ("format", "pad")),
        *((name, ctypes.c_uint64) for name in ("load_offset", "name", "base", "length", "table")),
    ]


class _Procedure(ctypes.Structure):
    """The beginning of a `unw_proc_info_t`, and space for the rest."""

    _fields_ = [("start", ctypes.c_uint64), ("end", ctypes.c_uint64), ("rest", ctypes.c_uint64 * 30)]


class Description:
    """An .eh_frame section with one description, for the code at `start` (address, bytes): registered once the library is there.

    `description`: the offset of the description in the section.
    """

    def __init__(self, start: int, size: int, section: bytes, description: int) -> None:
        self._section = ctypes.create_string_buffer(section, len(section))
        self._entry = _Entry(_BEFORE_ALL, description)
        base, table = ctypes.addressof(self._section), ctypes.addressof(self._entry)
        words = {"base": base, "length": 1, "table": table}
        self._dynamic = _Dynamic(start=start, end=start + size, format=_REMOTE_TABLE, **words)
        self._library: ctypes.CDLL | None = None
        _known[self] = None
        register_all()

    @property
    def is_registered(self) -> bool:
        """Whether the library has it."""
        return self._library is not None

    def register(self, library: ctypes.CDLL) -> None:
        """Register it, unless it was registered, or withdrawn, meanwhile."""
        with _lock:
            if self.is_registered or self not in _known:
                return
            library._U_dyn_register(ctypes.byref(self._dynamic))
            self._library = library
            if not self._is_found(library):  # another layout
                self._cancel()

    def _is_found(self, library: ctypes.CDLL) -> bool:
        found = _Procedure()
        space = ctypes.c_void_p.in_dll(library, "_ULx86_64_local_addr_space")
        failed = library._ULx86_64_get_proc_info_by_ip(
            space, ctypes.c_uint64(self._dynamic.start), ctypes.byref(found), None
        )
        return not failed and found.start == self._dynamic.start

    def _cancel(self) -> None:
        if self._library is not None:
            self._library._U_dyn_cancel(ctypes.byref(self._dynamic))
            self._library = None

    def withdraw(self) -> None:
        """Unregister it."""
        with _lock:
            del _known[self]
            self._cancel()


_known: dict[Description, None] = {}
_lock = fork.renew(threading.RLock())


def register_all() -> None:
    """Register all descriptions with the library, if it has been loaded meanwhile."""
    waiting = [each for each in list(_known) if not each.is_registered]
    if waiting and (library := _loaded()) is not None:
        for each in waiting:
            each.register(library)


_USED = ("_U_dyn_register", "_U_dyn_cancel", "_ULx86_64_get_proc_info_by_ip", "_ULx86_64_local_addr_space")


def _loaded() -> ctypes.CDLL | None:
    """The library, if it is there: else dlopen would fail, which takes away what dlerror has to say of the program's own."""
    if not any(each.name.endswith(_NAME) for each in loaded().objects):
        return None
    with contextlib.suppress(OSError):
        library = ctypes.CDLL(_NAME.decode(), os.RTLD_NOLOAD)
        if all(hasattr(library, name) for name in _USED):
            return library
    return None

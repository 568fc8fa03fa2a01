"""Executable pages at addresses chosen by the caller: many, far apart, on one memfd and with one writable alias.

A page of the file may be mapped at several addresses, so that mostly empty pages share memory; the caller keeps track of the
bytes in use. No mapping is writable and executable, and the alias is PROT_NONE outside `writable()`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable, Iterator

from sandbox.memory import mappings as memory
from sandbox.memory import pages
from sandbox.memory.mappings import PAGE, changing
from sandbox.process.descriptors import close_own, file_of

CAPACITY = 1 << 16
"""Pages of the file, which is sparse, at most: as many as a process may have mappings."""
SIZE = CAPACITY * PAGE
_AHEAD = 64
"""How many more pages than present are opened for writing, since more will follow."""


class ScatteredText:
    """Pages of text, each mapped by `place` to an address; `name` is what /proc/self/maps shows after `memfd:`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._pages: dict[int, int] = {}
        self._used = 0
        self._free: list[int] = []
        self._opened = 0
        self._writers = 0
        self._own_since = memory.forks_seen()
        self._file = pages.sparse_backing(name, SIZE)
        self._identity = file_of(self._file)
        self._alias = memory.map_closed(self._file, SIZE)

    def __len__(self) -> int:
        return len(self._pages)

    def __contains__(self, address: int) -> bool:
        return address & -PAGE in self._pages

    @property
    def addresses(self) -> list[int]:
        """The addresses of mapped pages, ascending."""
        return sorted(self._pages)

    def new_page(self) -> int:
        """The number of a page of the file that is free. Raises OSError(ENOMEM) if there are no more."""
        with changing(self):
            return self._next_page()

    def _next_page(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == CAPACITY:
            raise OSError(errno.ENOMEM, f"{self.name} has {CAPACITY} pages already")
        self._used += 1
        return self._used - 1

    def place(self, address: int, page: int) -> None:
        """Let file page `page` be executable at `address`, a multiple of PAGE.

        Raises FileExistsError if something is mapped there, OSError if the kernel refuses, or if the file's descriptor was closed
        by other code and none is free for a copy.
        """
        with changing(self):
            if file_of(self._file) != self._identity:
                self._copy()
            memory.map_page(self._file, page * PAGE, address)
            self._pages[address] = page

    def remove(self, addresses: Iterable[int], numbers: Iterable[int]) -> None:
        """Unmap the pages at these addresses, and give these pages of the file to later calls of `new_page`.

        No thread executes or references them any more.
        """
        with changing(self):
            for address in addresses:
                memory.release(address, PAGE)
                del self._pages[address]
            self._free += numbers

    def page_at(self, address: int) -> int | None:
        """The number of the file page that is mapped at `address`; None if it is not one of these."""
        return self._pages.get(address & -PAGE)

    @contextlib.contextmanager
    def writable(self) -> Iterator[None]:
        """Open the alias for `store`. Holds `text_mutex` and delays forks. May be nested.

        Raises OSError if text that a fork has left shared cannot be copied.
        """
        with changing(self):
            self._writers += 1
            try:
                yield
            finally:
                self._writers -= 1
                if not self._writers and self._opened:
                    opened, self._opened = self._opened, 0  # before it closes: a signal's handler may write, too
                    memory.set_writable(self._alias, opened * PAGE, False)

    def write(self, address: int, data: bytes) -> None:
        """Store `data` at `address`; it may cross from one page into the next. No thread executes it yet."""
        with self.writable():
            self.store(address, data)

    def store(self, address: int, data: bytes) -> None:
        """The same, within `writable()`."""
        if self._opened < self._used:
            opened = min(self._used + _AHEAD, CAPACITY)
            memory.set_writable(self._alias, opened * PAGE, True)
            self._opened = opened
        while data:
            left = PAGE - address % PAGE
            part = data[:left]
            ctypes.memmove(self._alias + self._pages[address & -PAGE] * PAGE + address % PAGE, part, len(part))
            if ctypes.string_at(address, len(part)) != part:  # a debugger's write has copied the page
                memory.write_through_kernel(address, part)
            address, data = address + left, data[left:]

    def unshare(self) -> None:
        """Replace the pages by this process's own copies, if a fork has left them shared by parent and child.

        The alias stays where it is, since a writer may have been interrupted by the fork. Raises OSError, and changes nothing,
        if there is no descriptor.
        """
        forks = memory.forks_seen()
        if forks == self._own_since:
            return
        if file_of(self._file) == self._identity:
            pages.close(self._file)  # whose number is free for the next
        self._copy()
        self._own_since = forks

    def _copy(self) -> None:
        """Let the pages be on a new file, with the same contents, instead of one that is closed."""
        contents = self._contents()
        self._file = -1
        self._file = pages.sparse_backing(self.name, SIZE)
        self._identity = file_of(self._file)
        os.pwrite(self._file, contents, 0)
        self._alias = memory.map_closed(self._file, SIZE, self._alias)
        if self._opened:
            memory.set_writable(self._alias, self._opened * PAGE, True)
        for address, page in self._pages.items():
            memory.map_page(self._file, page * PAGE, address, replace=True)

    def _contents(self) -> bytes:
        if self._opened < self._used:
            memory.set_writable(self._alias, self._used * PAGE, True)
        try:
            return ctypes.string_at(self._alias, self._used * PAGE)
        finally:
            if self._opened < self._used:
                memory.set_writable(self._alias + self._opened * PAGE, (self._used - self._opened) * PAGE, False)

    def unmap(self) -> None:
        """Give everything back. Nothing may execute or reference the text any more."""
        with memory.text_mutex:
            for address in self._pages:
                memory.release(address, PAGE)
            self._pages.clear()
            memory.release(self._alias, SIZE)
            close_own(self._file, self._identity)

"""The shared libraries in this process: their addresses and symbols."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import operator
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from pathlib import Path

from sandbox.elf import symbol_search
from sandbox.elf import tables as elf
from sandbox.elf.debug_files import mapped, with_symbols
from sandbox.elf.ehframe import FunctionTable, Kind, Stretch, is_cold, linkage_tables, pointed_to
from sandbox.elf.extents import Extents, extents_of
from sandbox.elf.function_starts import signal_return
from sandbox.elf.memory_file import from_memory
from sandbox.elf.tables import default_versions
from sandbox.process.fork import giving_way
from sandbox.process.once import cached_property, once
from sandbox.symbols.file_names import names_of
from sandbox.symbols.loaded import LoadedObject, changes, loaded
from sandbox.symbols.loaded_files import absolute, known_as, mapped_file
from sandbox.symbols.many_symbols import ManySymbols
from sandbox.symbols.readable import named, words_of
from sandbox.symbols.symbol_tables import Entries, all_entries, entries_before, named_entries, symbols_of, table_of
from sandbox.symbols.table import Location, Symbol, locate, sorted_symbols

_EXECUTED = Path("/proc/self/exe")
_PT_LOAD = 1
_PF_X = 1
_AT_EXECFN = 31
_PT_GNU_EH_FRAME = 0x6474E550
_FEW = 8
"""The number of lookups that are made without reading all symbols of a library; reading 100,000 takes seconds."""

_MANY = 16_000
"""The number of symbols from which on a library's functions are searched for, one by one."""
_FEW_OF_MANY = 64
"""`_FEW` for such a library."""


class Library:
    """A shared library, or the program itself (then `path` is that of /proc/self/exe).

    `base` is added to the addresses in the file; `text` are the executable ranges (start, end); `unwind_table` is
    the address of its .eh_frame_hdr, 0 if it has none; `marks`: bytes that its file has at some offsets, if it is still the one
    that was loaded. `file`: where that can be read, if it is not at `path` any more, or was never: a descriptor's, or
    /proc/self/exe.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        base: int,
        text: tuple[tuple[int, int], ...],
        unwind_table: int = 0,
        marks: tuple[tuple[int, bytes], ...] = (),
        file: Path | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.base = base
        self.text = text
        self.unwind_table = unwind_table
        self.marks = marks
        self.file = file or path
        self._columns: dict[tuple[int, int], bytes] = {}
        self.called = set[int]()
        """Starts of functions that are known to be called or to have a name: for them `kind_of` need not read all code."""

    def __repr__(self) -> str:
        return f"<Library {self.path} at {self.base:#x}>"

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Library) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)

    @cached_property
    def names(self) -> frozenset[str]:
        """The name, and that of the file which the link leads to. The vDSO, which has no file, has one name.

        The program itself has also the name by which it was executed.
        """
        resolved = self.path.resolve().name if self.path.is_absolute() else self.name
        return frozenset({self.name, resolved, *([_executed_as()] if self.is_program else [])} - {""})

    @cached_property
    def forms(self) -> frozenset[str]:
        """What it may be called before the colon of a pattern."""
        return frozenset[str]().union(*map(names_of, self.names))

    @property
    def is_program(self) -> bool:
        """Whether it is the program itself."""
        return self.path == known_as(_program())

    @property
    def _key(self) -> tuple[object, ...]:
        return self.name, self.path, self.base, self.text, self.unwind_table, self.marks

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and any(start <= address < end for start, end in self.text)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Functions and variables by ascending address, from the full symbol table if the file or its debug file has one, else
        from the dynamic one. Empty if no ELF file is there (the vDSO has none).

        A symbol of a version that programs are not linked with any more is called `memcpy@GLIBC_2.2.5`.

        Raises OSError if the file cannot be read, for example without a free descriptor; a later call may succeed.
        """
        return self._symbols_from(all_entries)

    def _symbols_from(self, entries: Callable[[elf.ElfFile, int], Entries]) -> tuple[Symbol, ...]:
        """The members of `symbols` that are among `entries(file, table)`. Raises as `symbols`."""
        file = self._tables()
        files = with_symbols(file, self.path) if file else []
        found: dict[Symbol, None] = {}
        for each in files:
            extents = extents_of(each, table_of(each))
            named = giving_way(symbols_of(each, self.base, self.name, entries))
            found |= dict.fromkeys(self._with_size(symbol, extents) for symbol in named)
        return sorted_symbols(found)

    @cached_property
    def _answers(self) -> dict[str | int, tuple[Symbol, ...]]:
        """Cached symbols by name and by address, while few have been requested."""
        return {}

    def _symbols_for(self, asked: str | int, entries: Callable[[elf.ElfFile, int], Entries]) -> tuple[Symbol, ...]:
        """All symbols if they are known or many have been requested, else those among `entries`."""
        if "symbols" in vars(self) or len(self._answers) >= (_FEW_OF_MANY if self.has_many else _FEW):
            return self.symbols
        if asked not in self._answers:
            self._answers[asked] = self._symbols_from(entries)
        return self._answers[asked]

    @cached_property
    def has_many(self) -> bool:
        """Whether its symbols are so many that few of them are better searched for, with `all_named` and `between`.

        Not if the dynamic loader chooses functions of its (IFUNC): all symbols show what is called by which name.
        """
        file = self._file()
        files = with_symbols(file, self.path) if file else []
        table = table_of(files[0]) if len(files) == 1 else 0
        return (
            table > 0
            and symbol_search.count(files[0], table) >= _MANY
            and not symbol_search.has_type(files[0], table, elf.STT_GNU_IFUNC)
        )

    @property
    def is_searched(self) -> bool:
        """Whether `all_named` and `between` search, as few have been requested of many: otherwise all symbols are known."""
        return self.has_many and "symbols" not in vars(self) and len(self._answers) < _FEW_OF_MANY

    def _table(self) -> tuple[elf.ElfFile, int]:
        """The file with the symbols, and the section of their table, of a library that `has_many`."""
        file = self._file()
        files = with_symbols(file, self.path) if file else []
        if not files:
            raise OSError(errno.ENOENT, f"{self.path} is not the file any more that was loaded")
        return files[0], table_of(files[0])

    @cached_property
    def many(self) -> ManySymbols:
        """The symbols in its code, if it `has_many`."""
        self._columns.clear()
        return ManySymbols(self.base, self._table, self._symbols_from)

    def all_named(self, name: str) -> tuple[Symbol, ...]:
        """The members of `symbols` with that name. Raises as `symbols`."""
        plain = name.partition("@")[0].encode("utf-8", "surrogateescape")
        found = self._symbols_for(name, lambda file, table: symbol_search.called(file, table, plain))
        return tuple(symbol for symbol in found if symbol.name == name) or tuple(self._demangled(name))

    def like(self, name: str, most: int) -> list[str]:
        """Names of its functions that are like `name`, at most that many. Raises as `symbols`."""
        file, wanted = self._file(), name.encode("utf-8", "surrogateescape")
        files = with_symbols(file, self.path) if file else []
        return [each for file in files for each in symbol_search.like(file, table_of(file), wanted, most)]

    def between(self, start: int, end: int) -> tuple[Symbol, ...]:
        """The members of `symbols` that begin at `start` or after it, and before `end`, which is close. Raises as `symbols`."""
        first, last = start - self.base, end - self.base
        if "symbols" in vars(self):
            return self.symbols[
                bisect_left(self.symbols, start, key=_address_of) : bisect_left(self.symbols, end, key=_address_of)
            ]
        if last == first + 1:
            return self._symbols_from(partial(self._entries_at, first))
        return self._symbols_from(lambda file, table: symbol_search.between(file, table, first, last))

    def _entries_at(self, offset: int, file: elf.ElfFile, table: int) -> Entries:
        """Those that begin there. The column of values, which takes longer than a search in it, is kept."""
        key = file.sections[table].type, symbol_search.count(file, table)
        if key not in self._columns:
            self._columns[key] = symbol_search.values_in(file, table)
        return symbol_search.having(file, table, offset, self._columns[key])

    def named(self, name: str) -> Symbol | None:
        """The first of `symbols` with that name; None if there is none. Raises OSError if the file cannot be read."""
        return next(iter(self.all_named(name)), None)

    def _demangled(self, name: str) -> list[Symbol]:
        """The functions whose demangled name is `name`, by ascending address."""
        words = words_of(name)
        if not words:
            return []
        longest = max(words, key=len).encode("utf-8", "surrogateescape")
        found = self._symbols_for(
            f"{name} demangled", lambda file, table: symbol_search.containing(file, table, longest)
        )
        return [found[place] for place in named(name, [symbol.name for symbol in found])]

    def _with_size(self, symbol: Symbol, extents: Extents) -> Symbol:
        """A function in assembly may have no size: then that of the code that unwind tables describe from there on.

        If they describe none there, it ends where the next function begins, by a symbol or the unwind tables.
        """
        start = symbol.address
        if symbol.size or start not in self:
            return symbol
        bounds = self.function_bounds(start)
        if bounds is not None:
            return symbol._replace(size=bounds[1] - start if bounds[0] == start else 0)
        end = extents.end(start - self.base) + self.base
        following = self._functions.next_start(start) if self._functions else None
        return symbol._replace(size=min(end, following or end) - start)

    def unversioned(self, name: str) -> str:
        """`memcpy` for `memcpy@@GLIBC_2.14`, if programs are linked with that version of it; other names as they are.

        Raises OSError if the file cannot be read.
        """
        plain, marks, version = name.partition("@@")
        file = self._file() if marks else None
        return plain if file is not None and version in default_versions(file, plain) else name

    @cached_property
    def exported(self) -> tuple[str, ...]:
        """Names of the functions in the dynamic symbol table, in its order. Raises OSError if the file cannot be read."""
        file = self._tables()
        if file is None:
            return ()
        return tuple(
            name
            for table in file.sections_of_type(elf.SHT_DYNSYM)
            for name, entry in named_entries(file, table, all_entries(file, table))
            if entry.section and entry.info & 15 in (elf.STT_FUNC, elf.STT_GNU_IFUNC)
        )

    @cached_property
    def _functions(self) -> FunctionTable | None:
        return FunctionTable(self.unwind_table) if self.unwind_table else None

    @cached_property
    def linkage_tables(self) -> tuple[tuple[int, int], ...]:
        """Start and end of its procedure linkage tables. Raises OSError if the library's file cannot be read."""
        file = self._file()
        return linkage_tables(file, self.base) if file else ()

    @cached_property
    def imports(self) -> dict[int, str]:
        """The names of what the dynamic linker looks up, by the offset from `base` of where it puts the address.

        Raises OSError if the library's file cannot be read.
        """
        file = self._file()
        return dict(elf.imports(file)) if file else {}

    @cached_property
    def _shown(self) -> frozenset[int]:
        """The starts of functions that symbols, calls or pointers show."""
        starts = self._functions.starts if self._functions else frozenset()
        named = {symbol.address for symbol in self.symbols if not is_cold(symbol.name)}
        file = self._file()
        return (starts & named) | (pointed_to(file, self.base, starts) if file else set())

    def _file(self) -> elf.ElfFile | None:
        """None if no ELF file is there (the vDSO has none), or another one. Raises OSError if it cannot be read."""
        try:
            file = mapped(self.file)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # an empty file, or not ELF
            return None
        return file if all(file.data[at : at + len(mark)] == mark for at, mark in self.marks) else None

    def _tables(self) -> elf.ElfFile | None:
        """Its file or, if that is not there any more, what its memory has of it: what it exports."""
        return self._file() or self._in_memory

    @cached_property
    def _in_memory(self) -> elf.ElfFile | None:
        if not (self.base and self.is_replaced):
            return None
        with contextlib.suppress(OSError, ValueError), open("/proc/thread-self/mem", "rb", 0) as memory:  # noqa: PTH123
            return from_memory(lambda address, size: os.pread(memory.fileno(), size, address), self.base)
        return None

    @property
    def is_replaced(self) -> bool:
        """Whether its file is not there any more, or is another one: only the names that it exports are known."""
        return self.path.is_absolute() and self._file() is None

    @property
    def is_stripped(self) -> bool:
        """Whether only functions that it exports have names: neither its file nor a debug file has a full symbol table.

        Raises OSError if its file cannot be read.
        """
        file = self._file()
        files = with_symbols(file, self.path) if file else []
        return file is not None and not any(each.sections_of_type(elf.SHT_SYMTAB) for each in files)

    def code_in_file(self, address: int, size: int) -> bytes:
        """What its file has for `size` bytes of the code at `address`; b"" if the file is not the one that was loaded."""
        file, offset = self._file(), address - self.base
        for segment in file.segments() if file else ():
            if segment.type == _PT_LOAD and segment.address <= offset <= segment.address + segment.file_size - size:
                at = segment.offset + offset - segment.address
                return bytes(file.data[at : at + size]) if file else b""
        return b""

    def function_bounds(self, address: int) -> tuple[int, int] | None:
        """Start and end of the code, usually a function, that unwind tables describe around `address`; None if there is none.

        A signal frame begins after `address` if that is not the first byte of an instruction.
        """
        stretch = self._functions.stretch(address) if self._functions else None
        if stretch is None:
            return None
        code = ctypes.string_at(stretch.start, stretch.end - stretch.start) if stretch.is_signal_frame else b""
        return stretch.start + signal_return(code), stretch.end

    def described_code(self) -> list[tuple[int, int]]:
        """Start and end of all stretches of code that unwind tables describe, ascending; empty if it has none."""
        return [stretch[:2] for stretch in self.stretches()]

    def stretches(self) -> Iterable[Stretch]:
        """The ranges of code that unwind tables describe, ascending."""
        return self._functions or ()

    def starts(self) -> Set[int]:
        """Where these begin."""
        return self._functions.starts if self._functions else frozenset()

    def stretches_in(self, start: int, end: int) -> Iterator[Stretch]:
        """Those that begin after `start`, and before `end`."""
        following = self._functions.following(start) if self._functions else iter(())
        return itertools.takewhile(lambda stretch: stretch.start < end, following)

    def functions(self) -> list[tuple[int, int]]:
        """The members of `described_code` that are shown to be functions. Raises OSError if the library's file cannot be read."""
        return [each[:2] for each in self.stretches() if self.kind_of(each) is Kind.FUNCTION]

    def kind_at(self, address: int) -> Kind:
        """The kind of the code around `address`, by the unwind tables; a function if they do not describe it.

        Raises OSError if the library's file cannot be read.
        """
        stretch = self._functions.stretch(address) if self._functions else None
        return Kind.FUNCTION if stretch is None else self.kind_of(stretch)

    def kind_from(self, address: int) -> Kind:
        """The kind of the code that begins at `address`, if unwind tables describe it; else UNKNOWN. Raises as `kind_at` does."""
        stretch = self._functions.stretch(address) if self._functions else None
        if stretch is None or (stretch.start != address and self.function_bounds(address) != (address, stretch.end)):
            return Kind.UNKNOWN
        return self.kind_of(stretch)

    def kind_of(self, stretch: Stretch) -> Kind:
        """The kind of code with this description in the unwind tables. Raises OSError if the library's file cannot be read."""
        if (other := self._other_kind(stretch)) is not None:
            return other
        is_function = stretch.start in self.called or self._has_name(stretch.start) or stretch.start in self._shown
        return Kind.FUNCTION if is_function else Kind.UNKNOWN

    def may_be_function(self, stretch: Stretch) -> bool:
        """Whether its kind is FUNCTION or UNKNOWN, which of both is not found out. Raises as `kind_of`."""
        return self._other_kind(stretch) is None

    def _other_kind(self, stretch: Stretch) -> Kind | None:
        if stretch.is_signal_frame:
            return Kind.SIGNAL_FRAME
        if any(start <= stretch.start < end for start, end in self.linkage_tables):
            return Kind.PLT
        return None if stretch.is_as_called else Kind.COLD

    def _has_name(self, address: int) -> bool:
        """Whether a symbol is known to begin there: then it need not be found out which of all do."""
        if "_shown" in vars(self) or not self.has_many:
            return False
        return any(not is_cold(symbol.name) for symbol in self.between(address, address + 1))

    def beginning_at(self, address: int) -> Symbol | None:
        """The symbol with a size that begins there, by the name that programmers write. Raises as `locate`.

        Of very many symbols a few are found sooner so than with columns of them all.
        """
        offset = address - self.base
        if "many" in vars(self) or len(self._answers) >= _FEW:
            found = self.many.around(address)
        else:
            found = self._symbols_for(
                address, lambda file, table: symbol_search.between(file, table, offset, offset + 1)
            )
        location = locate(found, address)
        return location.symbol if location is not None and location.symbol.size and not location.offset else None

    def locate(self, address: int) -> Location | None:
        """The symbol that contains `address`. Raises OSError if the file cannot be read."""
        if self.is_searched and address in self:
            if (symbol := self.beginning_at(address)) is not None:
                return Location(symbol, 0)
            return locate(self.many.around(address), address)
        near = self._symbols_for(address, lambda file, table: entries_before(file, table, address - self.base))
        return locate(near, address)


_address_of = operator.attrgetter("address")

_known: list[tuple[tuple[int, int], list[Library]]] = []
"""How much had been loaded and unloaded when this was the list."""


def libraries() -> list[Library]:
    """The objects that the dynamic loader has loaded, in its order: first the program itself."""
    if not _known or _known[0][0] != changes():
        now = loaded()
        _known[:] = [(now.changes, [_library(each) for each in now.objects])]
    return list(_known[0][1])


def elsewhere() -> int:
    """The number of objects in other namespaces, those of dlmopen: the loader counts them, but tells nothing else of them."""
    here = len(libraries())
    loads, unloads = _known[0][0]
    return (loads - unloads) % (1 << 64) - here  # the difference is the number of all, whatever has been unloaded


def _library(found: LoadedObject) -> Library:
    base, headers = found.base, found.headers
    text = tuple(
        (base + header.address, base + header.address + header.memory_size)
        for header in headers
        if header.type == _PT_LOAD and header.flags & _PF_X
    )
    unwind_table = next((base + header.address for header in headers if header.type == _PT_GNU_EH_FRAME), 0)
    name = found.name.decode("utf-8", "surrogateescape")
    if not name:
        path = _program()
    elif "/" in name and not name.startswith("/"):
        first = min(base + header.address for header in headers if header.type == _PT_LOAD)
        path = mapped_file(first) or absolute(name)
    else:
        path = Path(name)
    called = known_as(path)
    return Library(
        called.name, called, base, text, unwind_table, found.marks, _EXECUTED if not name and called != path else path
    )


@once
def _program() -> Path:
    return Path("/proc/thread-self/exe").resolve()


@once
def _executed_as() -> str:
    """The base name of the file that was executed, which may be a link."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.restype = ctypes.c_void_p
    address = getauxval(ctypes.c_ulong(_AT_EXECFN))
    return ctypes.string_at(address).decode("utf-8", "surrogateescape").rpartition("/")[2] if address else ""


def library_at(address: int) -> Library | None:
    """The library whose code contains `address`; None if there is none."""
    return next((library for library in libraries() if address in library), None)

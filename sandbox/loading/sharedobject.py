"""Shared objects with patchable function entries: patched to NOPs in the file, then opened by the dynamic loader.

Constructors, which would run while the loader opens the file, are disabled in the file itself, so that a module can be
announced before any of its code runs.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import threading
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox.compile.objectfile import patchable_stub
from sandbox.compile.stubs import STUB_SIZE, Flavour
from sandbox.elf import tables as elf
from sandbox.loading.linker import LinkError
from sandbox.loading.loaded_code import LoadedCode, call_guarded, drop_aliases, owners, remap
from sandbox.symbols.symbol_tables import read_symbols
from sandbox.symbols.table import Symbol, with_sizes
from sandbox.x86_64.encoding import NOP5

_STARTUP = {
    "_init", "_fini", "frame_dummy", "register_tm_clones", "deregister_tm_clones",
    "__do_global_dtors_aux",
    "completed.0", "__dso_handle",
}  # fmt: skip
_DT_INIT_ARRAY, _DT_INIT_ARRAYSZ = 25, 27
_EXECUTABLE_STACK = (
    "; glibc 2.41 and later refuse that. Pointers to nested functions of gcc need it: use functions that are not nested. "
    "Without such pointers (assembly may ask for it, too), use cflags=['-Wl,-z,noexecstack']"
)


@dataclass(frozen=True)
class SilencedLibrary:
    """A shared object whose stubs are NOPs and whose constructors the loader does not see.

    `stubs` are their addresses before relocation, ascending; `constructors` is the (address, size in bytes) of the
    table of pointers to them.
    """

    data: bytes
    stubs: array[int]
    constructors: tuple[int, int]


def silence(data: bytes) -> SilencedLibrary:
    """Turn every patchable entry of a shared object into one 5-byte NOP, and take its constructors from the loader.

    Raises elf.ElfError if `data` is not a shared object, StubError if an entry is not five bytes of NOP.
    """
    file = elf.ElfFile(data)
    if file.type != elf.ET_DYN:
        raise elf.ElfError(f"not a shared object: ELF type {file.type}")
    image = bytearray(data)
    stubs = array("Q")
    for entry in _patchable_entries(file):
        section = _section_at(file, entry)
        start = patchable_stub(file.contents(section), entry - file.sections[section].address)
        offset = file.sections[section].offset + start
        image[offset : offset + STUB_SIZE] = NOP5
        stubs.append(file.sections[section].address + start)
    constructors = _take_constructors(file, image)
    return SilencedLibrary(bytes(image), array("Q", sorted(stubs)), constructors)


def _patchable_entries(file: elf.ElfFile) -> Iterator[int]:
    """Addresses in the tables of entries: the addends of their relocations, or the values stored there."""
    tables = [file.sections[i] for i in file.sections_named(elf.PATCHABLE_ENTRIES)]
    addends = {
        relocation.offset: relocation.addend
        for index in (file.sections_of_type(elf.SHT_RELA) if tables else ())
        for relocation in file.relocations(index)
        if relocation.type == elf.R_X86_64_RELATIVE
    }
    for table in tables:
        stored = memoryview(bytes(file.data[table.offset : table.offset + table.size])).cast("Q")
        for number, value in enumerate(stored):
            yield addends.get(table.address + number * 8, value)


def _section_at(file: elf.ElfFile, address: int) -> int:
    for i, section in enumerate(file.sections):
        if section.flags & elf.SHF_EXECINSTR and section.address <= address < section.address + section.size:
            return i
    raise elf.ElfError(f"the patchable entry at {address:#x} is in no code section")


def _take_constructors(file: elf.ElfFile, image: bytearray) -> tuple[int, int]:
    address = size = 0
    for index in file.sections_of_type(elf.SHT_DYNAMIC):
        start = file.sections[index].offset
        entries = memoryview(bytes(file.contents(index))).cast("Q")
        for number in range(0, len(entries), 2):
            if entries[number] == _DT_INIT_ARRAY:
                address = entries[number + 1]
            elif entries[number] == _DT_INIT_ARRAYSZ:
                size = entries[number + 1]
                image[start + number * 8 + 8 : start + number * 8 + 16] = bytes(8)
    return address, size


def open_library(
    library: SilencedLibrary, path: Path, name: str, untraced: Collection[str], discard: Callable[[], None]
) -> LoadedCode:
    """Open the file at `path`, which holds `library.data`, as module `name`.

    Functions in `untraced` get no sites. `discard` is called after the library was closed. Raises LinkError with what
    the dynamic loader says if it cannot open it.
    """
    handle = _opened(path, name)
    base = elf.load_base(handle)
    functions, data = _symbols(library, base, name)
    traced = [(stub, owner) for stub, owner in _owned_stubs(library, base, functions) if owner.name not in untraced]
    texts = remap(_text_spans(library.data, base), name)

    def close() -> None:
        _ctypes.dlclose(handle)
        drop_aliases(texts)
        discard()

    return LoadedCode(
        kind=Flavour.PATCHABLE if library.stubs else Flavour.NONE,
        functions=functions,
        data=data,
        sites=array("Q", [site for site, _ in traced]),
        site_functions=[owner for _, owner in traced],
        texts=texts,
        start=lambda: _construct(base + library.constructors[0], library.constructors[1], functions),
        discard=close,
        shared_object=(library.data, base),
    )


_opening = threading.local()


def is_opening() -> bool:
    """Whether this thread is in the dlopen() of a module: what that has opened is no library that anybody waits for."""
    return getattr(_opening, "is_on", False)


def _opened(path: Path, name: str) -> int:
    """The handle of dlopen()."""
    _opening.is_on = True
    try:
        return int(ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_LOCAL)._handle)
    except OSError as error:
        why = str(error).removeprefix(f"{path}: ")
        if "executable stack" in why:
            why += _EXECUTABLE_STACK
        raise LinkError(f"module {name!r} cannot be opened: {why}") from None
    finally:
        _opening.is_on = False


def _owned_stubs(library: SilencedLibrary, base: int, functions: Sequence[Symbol]) -> Iterator[tuple[int, Symbol]]:
    """The address of each stub, and the function whose it is."""
    stubs = [base + stub for stub in library.stubs]
    return zip(stubs, owners(stubs, functions), strict=True)


def _symbols(library: SilencedLibrary, base: int, name: str) -> tuple[tuple[Symbol, ...], tuple[Symbol, ...]]:
    """Functions and data, without what the compiler's start-up files brought."""
    file = elf.ElfFile(library.data)
    code = {file.section_name(i) for i, section in enumerate(file.sections) if section.flags & elf.SHF_EXECINSTR}
    symbols = [symbol for symbol in read_symbols(library.data, base, name) if symbol.name not in _STARTUP]
    text = [
        (base + each.address, base + each.address + each.size)
        for each in file.sections
        if each.flags & elf.SHF_EXECINSTR
    ]
    functions = tuple(with_sizes((symbol for symbol in symbols if symbol.section in code), text))
    return functions, tuple(symbol for symbol in symbols if symbol.section not in code and symbol.size)


def _text_spans(data: bytes, base: int) -> Iterator[tuple[int, int]]:
    for segment in elf.ElfFile(data).segments():
        if segment.type == elf.PT_LOAD and segment.flags & elf.PF_X:
            yield base + segment.address, base + segment.address + segment.memory_size


def _construct(table: int, size: int, functions: Sequence[Symbol]) -> None:
    """Call the constructors: those of the program guarded, that of the start-up files, `frame_dummy`, as it is."""
    known = {function.address for function in functions}
    for address in (ctypes.c_uint64 * (size // 8)).from_address(table) if size else ():
        if address in known:
            call_guarded(address)
        else:
            ctypes.CFUNCTYPE(None)(address)()

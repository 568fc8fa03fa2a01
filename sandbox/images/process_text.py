"""Any code in the process, by name or address: modules, the shared libraries beside them, and the code of JIT compilers.

A library's functions are written `libz:deflate`, or `libm.so.6:sin` with its full name. Its text is moved to a memfd, in place,
when it is first patched; threads that are in it find the same bytes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterable

from sandbox.elf.ehframe import Kind, is_cold
from sandbox.loading.module import Module, loaded_modules
from sandbox.memory import mappings
from sandbox.memory.existing_text import LARGE, LargeText, remap_text
from sandbox.memory.mappings import TextMapping
from sandbox.process import fork
from sandbox.symbols.file_names import is_in_folder, split_folder, told_apart
from sandbox.symbols.libraries import Library, libraries, library_at
from sandbox.symbols.loaded import loaded
from sandbox.symbols.names import split_owner
from sandbox.symbols.table import Symbol, locate, symbol_table

JIT_NAMES = frozenset({"jit", "numba", "perf"})
"""The prefixes, before the colon, of names of code of JIT compilers (sandbox.images.jit_image): many objects share each."""

_chosen: dict[int, Symbol] = {}
"""Resolved indirect functions, by the address of the chosen one."""

_patchable: dict[tuple[str, int], TextMapping] = {}
"""The text of libraries that has been made patchable, by path and first address."""


_dlsym = ctypes.CDLL(None).dlsym
"""Python's own `getattr(library, name)` crashes where the result is NULL without an error, as of an indirect function."""
_dlsym.argtypes, _dlsym.restype = (ctypes.c_void_p, ctypes.c_char_p), ctypes.c_void_p


def module_at(address: int) -> Module | None:
    """The module whose text contains `address`."""
    found = module_text_at(address)
    return found[0] if found else None


def module_text_at(address: int) -> tuple[Module, TextMapping] | None:
    """The same, with the mapping through which its code there can be patched."""
    for module in list(loaded_modules.values()):
        for text in module.texts:
            if address in text:
                return module, text
    return None


def symbol_named(name: str) -> Symbol:
    """The function or object called `name`: `symbol`, `module:symbol` or `library:symbol`.

    An indirect function (IFUNC) is the one that it resolves to in this process. Of several with the name, the one at the
    lowest address. Raises LookupError naming it; sandbox.images.near_misses says what may have been meant.
    """
    found = symbol_table.named(name)
    if found:
        return found[0]
    owner, colon, bare = split_owner(name)
    if owner in JIT_NAMES:
        return _compiled_named(owner, bare)
    for library in libraries_called(owner) if colon else ():
        symbol = library.named(library.unversioned(bare))
        if symbol is not None:
            return chosen(library, symbol) if symbol.indirect else symbol
    raise LookupError(f"no symbol {name!r} in the process")


def is_symbol(name: str) -> bool:
    """Whether there is a function or object called `name`, as for `symbol_named`. Raises OSError if a file cannot be read."""
    try:
        return bool(symbol_named(name))
    except LookupError:
        return False


def _compiled_named(owner: str, bare: str) -> Symbol:
    """The same for `numba:`, `jit:` and `perf:`."""
    from sandbox.images import compiled

    functions = [symbol for image in compiled.source.images() if owner in image.names for symbol in image.functions]
    found = [symbol for symbol in functions if symbol.name == bare]
    if not found:
        raise LookupError(f"no function {owner}:{bare} has been compiled yet")
    return min(found, key=lambda symbol: symbol.address)


def chosen(library: Library, indirect: Symbol) -> Symbol:
    """The function that an indirect one (IFUNC) of `library` is in this process, under its name."""
    symbol = _resolved(library, indirect)
    _chosen[symbol.address] = symbol
    return symbol


def library_called(name: str) -> Library | None:
    """The first of `libraries_called`; None if there is none."""
    return next(iter(libraries_called(name)), None)


def libraries_called(name: str) -> list[Library]:
    """The loaded libraries of that name: `libz`, `libz.so.1`, that of the file which the link leads to, or the end of its path.

    Characters that probe events take for something else may be `_`: `libstdc__` is libstdc++.
    """
    folder, file = split_folder(name)
    called = [library for library in map(unique, libraries()) if file in library.forms]
    return [library for library in called if not folder or is_in_folder(str(library.path), folder)]


def distinctive_name(library: Library) -> str:
    """`libz`, or as much of its path as tells it apart from others in this process: `libz.so.1`, `lib/libz`."""
    return told_apart(str(library.path), tuple(str(each.path) for each in libraries()))


def _resolved(library: Library, symbol: Symbol) -> Symbol:
    """The function that the dynamic loader has chosen for an indirect function; its address is 0 if there is none."""
    name = _name_in_loader(library)
    address = None
    with contextlib.suppress(OSError):  # it is being closed
        address = _dlsym(_opened(name, os.RTLD_NOLOAD)._handle, os.fsencode(symbol.name)) if name else None
    if address is None:  # not exported, or the program's own: ask its resolver, which takes no arguments
        address = ctypes.CFUNCTYPE(ctypes.c_void_p)(symbol.address)() or 0
    known = library.locate(address)
    if known is not None and known.offset == 0 and known.symbol.address != symbol.address:
        return known.symbol._replace(name=symbol.name)
    bounds = library.function_bounds(address)
    size = bounds[1] - address if bounds else 0
    return symbol._replace(address=address, size=size, indirect=False)


def symbol_at(address: int) -> Symbol | None:
    """The function that contains `address`.

    In a library without symbols, functions are taken from its unwind tables and called `library+0xoffset`. Code that cannot be
    shown to be a function has a suffix: `.plt`, `.signal-frame`, `.cold`, or `.part` for a part of a function or a function
    that is only jumped to.
    """
    location = symbol_table.locate(address)
    if location is not None:
        return location.symbol
    library = library_of(address)
    if library is None:
        return _compiled_at(address)
    found = library.locate(address)
    if found is not None and not found.symbol.indirect:
        return found.symbol
    bounds = library.function_bounds(address)
    if bounds is None:
        return None
    if bounds[0] in _chosen:
        return _chosen[bounds[0]]
    name = f"{library.name}+{bounds[0] - library.base:#x}{library.kind_at(address).suffix}"
    return Symbol(name, bounds[0], bounds[1] - bounds[0], library.name)


def _compiled_at(address: int) -> Symbol | None:
    from sandbox.images import compiled

    image = compiled.source.at(address)
    found = locate(image.functions, address) if image else None
    return found.symbol if found else None


def no_function(symbol: Symbol) -> str:
    """Why what begins at `symbol` is no function, so that its returns cannot be probed; '' if nothing is known against it.

    Raises OSError if the library's file cannot be read.
    """
    if is_cold(symbol.name):
        return Kind.COLD.reason
    library = library_of(symbol.address) if module_at(symbol.address) is None else None
    bounds = library.function_bounds(symbol.address) if library else None
    if library is None or bounds is None or bounds[0] != symbol.address:
        return ""
    return library.kind_at(symbol.address).reason


_libraries: dict[Library, Library] = {}


def unique(library: Library) -> Library:
    """Each call returns the same object for a library, because its tables are read once and stored in it."""
    return _libraries.setdefault(library, library)


def library_of(address: int) -> Library | None:
    """The library whose code contains `address`, always the same object; None if there is none."""
    library = library_at(address)
    return unique(library) if library is not None else None


def note_called(addresses: Iterable[int]) -> None:
    """Functions of libraries begin at these addresses: a call of each has been seen."""
    for address in addresses:
        library = library_of(address)
        if library is not None:
            library.called.add(address)


def text_at(address: int) -> TextMapping:
    """The mapping through which the code at `address` can be patched.

    Raises OSError(EINVAL) if there is no code of a module or a library there, or none that can be written (the vDSO).
    """
    found = module_text_at(address)
    if found:
        return found[1]
    library = library_of(address)
    if library is None:
        return _compiled_text_at(address)
    if not library.path.is_absolute():
        raise OSError(errno.EINVAL, f"{address:#x} is in {library.name}, which has no backing file")
    start, end = next(span for span in library.text if span[0] <= address < span[1])
    if (str(library.path), start) not in _patchable:
        _keep_loaded(library)  # not under the mutex, for which forks wait: by constructors, also with the loader's lock
    with mappings.text_mutex:
        known = _patchable.get((str(library.path), start))
        if known is None:
            fork.start_by_fork()
            put_on_file = LargeText if end - start > LARGE else remap_text
            known = _patchable[str(library.path), start] = put_on_file(start, end - start, library.name)
        known.prepare([address])
        return known


def _keep_loaded(library: Library) -> None:
    """Let it stay even if the program closes it: threads may be in code that its patched text jumps to.

    It is named as the loader names it, who then needs no file. Raises OSError(ENOENT) if it has been closed just now.
    """
    name = _name_in_loader(library)
    if not name:
        return  # the program itself
    try:
        _opened(name, os.RTLD_NOLOAD | os.RTLD_NODELETE)
    except OSError:
        if library not in libraries():
            raise OSError(errno.ENOENT, f"{library.name} is not loaded any more") from None


def _name_in_loader(library: Library) -> bytes:
    """The name by which the loader knows it without its file; empty for the program itself."""
    return next((each.name for each in loaded().objects if each.base == library.base), b"")


def _opened(name: bytes, flags: int) -> ctypes.CDLL:
    return ctypes.CDLL(os.fsdecode(name), mode=flags | os.RTLD_NOW)


def is_patchable(library: Library) -> bool:
    """Whether text of a library has been made patchable: it has been probed."""
    return any((str(library.path), start) in _patchable for start, _ in library.text)


def patchable_texts() -> list[TextMapping]:
    """The text of libraries and of the program that has been made patchable."""
    return list(_patchable.values())


def _compiled_text_at(address: int) -> TextMapping:
    from sandbox.images import compiled

    image = compiled.source.at(address)
    if image is None:
        raise OSError(errno.EINVAL, f"{address:#x} is not in the text of a module, a library or a JIT compiler")
    return image.text_at(address)

"""Linking a prepared object into the process, with its own JIT engine."""

from __future__ import annotations

import ctypes
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sandbox.compile.codegen import TRIPLE, initialize_llvm, target_machine
from sandbox.compile.exports import needed
from sandbox.compile.objectfile import LoadableObject
from sandbox.elf import tables
from sandbox.loading.loaded_code import LoadedCode, call_guarded, drop_aliases, owners, remap
from sandbox.memory import pages
from sandbox.symbols import gdbjit
from sandbox.symbols.table import Symbol, sorted_symbols, with_sizes

if TYPE_CHECKING:
    from llvmlite.binding import ExecutionEngine


MAX_SIZE = (1 << 31) - (1 << 24)
"""Bytes that the sections of a program may take together: each has to reach all others, and the linker's stubs."""


class LinkError(ValueError):
    """An object that cannot be linked; the message names the symbols at fault."""


def link(obj: LoadableObject, name: str) -> LoadedCode:
    """Link `obj` as module `name`. Raises LinkError if symbols are missing, OSError if memory is refused."""
    # LLVM searches the process for symbols only once there is an engine.
    engine = _engine()
    _check_undefined(obj, name)
    _check_size(obj, name)
    with gdbjit.making_own():
        _add(engine, obj.data)
        claim(engine, obj)
    return loaded_code_of(obj, name, engine, engine.close)


def _check_undefined(obj: LoadableObject, name: str) -> None:
    from llvmlite import binding

    for symbol, address in needed(obj.undefined).items():
        binding.add_symbol(symbol, address)
    missing = sorted(symbol for symbol in obj.undefined if not binding.address_of_symbol(symbol))
    if missing:
        listed = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise LinkError(f"module {name!r} refers to undefined symbols: {listed}; load what defines them first")


def try_to_link(obj: LoadableObject, name: str) -> None:
    """Link `obj` on trial, with arbitrary addresses for undefined symbols. LLVM may end this process.

    Raises LinkError if there is no memory for it.
    """
    from llvmlite import binding

    engine = _engine()
    anywhere = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value
    for symbol in obj.undefined:
        if not binding.address_of_symbol(symbol):
            binding.add_symbol(symbol, anywhere)
    _check_size(obj, name)
    _add(engine, obj.data)


def _check_size(obj: LoadableObject, name: str) -> None:
    """Raise LinkError if the sections do not fit the code model, or this process: there LLVM would end it."""
    size = sum(length for _, length in obj.sections.values())
    largest = max(obj.sections.values(), key=lambda section: section[1], default=("", 0))
    what = f"{name}: its code and variables take {size} bytes, {largest[1]} of them in {largest[0]!r}"
    if size > MAX_SIZE:
        raise LinkError(f"{what}; the small code model allows {MAX_SIZE}")
    if not pages.is_available(size):
        raise LinkError(f"{what}; {pages.why_unavailable() or 'not enough memory is available'}")


def _engine() -> ExecutionEngine:
    from llvmlite import binding

    initialize_llvm()
    empty = binding.parse_assembly(f'target triple = "{TRIPLE}"', binding.create_context())
    engine = binding.create_mcjit_compiler(empty, target_machine(1))
    setattr(engine, gdbjit.OWN, True)
    return engine


def _add(engine: ExecutionEngine, data: bytes) -> None:
    from llvmlite import binding

    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()


def loaded_code_of(obj: LoadableObject, name: str, engine: ExecutionEngine, close: Callable[[], None]) -> LoadedCode:
    """The result of linking `obj` in `engine`; `close` frees the engine when the code is discarded."""
    bases = _section_bases(engine, obj)
    symbols = list(_placed(obj, bases, engine, name))
    code = [(bases[section], bases[section] + obj.sections[section][1]) for section in obj.executable & bases.keys()]
    functions = sorted_symbols(with_sizes((symbol for symbol, section in symbols if section in obj.executable), code))
    data = sorted_symbols(symbol for symbol, section in symbols if section not in obj.executable)
    sites = array("Q", sorted(bases[section] + start for section, starts in obj.stubs.items() for start in starts))
    texts = remap(_text_spans(obj, bases), name)

    def discard() -> None:
        close()
        gdbjit.own_code.difference_update(_claimed(obj, bases))
        drop_aliases(texts)

    return LoadedCode(
        kind=obj.kind,
        functions=functions,
        data=data,
        sites=sites,
        site_functions=owners(sites, functions),
        texts=texts,
        start=lambda: _construct(bases[section] + offset for section, offset in obj.constructors),
        discard=discard,
        debug_image=tables.placed(obj.data, bases),
    )


def claim(engine: ExecutionEngine, obj: LoadableObject) -> None:
    """Tell the code that `engine` has made of `obj` from that of others. Within `gdbjit.making_own()`."""
    gdbjit.own_code.update(_claimed(obj, _section_bases(engine, obj)))


def _claimed(obj: LoadableObject, bases: dict[int, int]) -> Iterator[int]:
    """The addresses of its symbols, those of variables, too: another compiler may get the same ones when it is unloaded."""
    return (bases[it.section] + it.value for it in obj.symbols if it.section in bases)


def _section_bases(engine: ExecutionEngine, obj: LoadableObject) -> dict[int, int]:
    """The address of each section that has a symbol."""
    bases: dict[int, int] = {}
    uses = Counter(symbol.name for symbol in obj.symbols)
    for name, section, value, _ in obj.symbols:
        if section in bases or section == tables.SHN_COMMON or uses[name] > 1:
            continue
        address = engine.get_global_value_address(name)
        if address:
            bases[section] = address - value
    lost = [obj.sections[section][0] for section in obj.stubs if section not in bases]
    if lost:
        raise LinkError(f"section {lost[0]!r} has stubs but no symbol with a unique name: rename one of its functions")
    return bases


def _placed(
    obj: LoadableObject, bases: dict[int, int], engine: ExecutionEngine, module: str
) -> Iterator[tuple[Symbol, int]]:
    """Each symbol with the section that it is in."""
    sections = {i: name for i, (name, _) in obj.sections.items()}
    for name, section, value, size in obj.symbols:
        if section in bases:
            yield Symbol(name, bases[section] + value, size, module, sections.get(section, "")), section
        elif section == tables.SHN_COMMON:
            yield Symbol(name, engine.get_global_value_address(name), size, module, ".bss"), section


def _text_spans(obj: LoadableObject, bases: dict[int, int]) -> Iterator[tuple[int, int]]:
    for section in obj.executable & bases.keys():
        size = obj.sections[section][1]
        if size:
            yield bases[section], bases[section] + size


def _construct(constructors: Iterable[int]) -> None:
    for address in constructors:
        call_guarded(address)

"""Linking a prepared object into the process, with a JIT engine of its own."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sandbox import elf, memory
from sandbox.memory import TextMapping
from sandbox.objectfile import LoadableObject, ObjectSymbol
from sandbox.program import TRIPLE, initialize_llvm, target_machine
from sandbox.stubs import Flavour
from sandbox.symbols import Symbol


class LinkError(ValueError):
    """An object that cannot be linked; the message names the symbols at fault."""


@dataclass
class LinkedObject:
    """Code in place: not yet known to anyone, its stubs NOPs. `unlink` unmaps it."""

    kind: Flavour
    functions: tuple[Symbol, ...]
    data: tuple[Symbol, ...]
    sites: array[int]
    site_functions: list[Symbol]
    texts: tuple[TextMapping, ...]
    engine: Any

    def unlink(self) -> None:
        """Unmap everything. Nobody may be in it."""
        self.engine.close()


def link(obj: LoadableObject, name: str) -> LinkedObject:
    """Link `obj` as module `name`. Raises LinkError if symbols are missing, OSError if memory is refused."""
    _check_undefined(obj, name)
    engine = _engine()
    _add(engine, obj.data)
    bases = _section_bases(engine, obj)
    functions = _placed((s for s in obj.symbols if s.section in obj.executable), bases, engine, name)
    data = _placed((s for s in obj.symbols if s.section not in obj.executable), bases, engine, name)
    sites = array("Q", sorted(bases[section] + start for section, starts in obj.stubs.items() for start in starts))
    texts = _remapped(obj, bases, name)
    return LinkedObject(obj.kind, functions, data, sites, _owners(sites, functions), texts, engine)


def _check_undefined(obj: LoadableObject, name: str) -> None:
    from llvmlite import binding

    initialize_llvm()
    missing = sorted(symbol for symbol in obj.undefined if not binding.address_of_symbol(symbol))
    if missing:
        listed = ", ".join(missing[:8]) + (f" and {len(missing) - 8} more" if len(missing) > 8 else "")
        raise LinkError(f"module {name!r} uses symbols that are nowhere in this process: {listed}")


def _engine() -> Any:
    from llvmlite import binding

    initialize_llvm()
    empty = binding.parse_assembly(f'target triple = "{TRIPLE}"', binding.create_context())
    return binding.create_mcjit_compiler(empty, target_machine(1))


def _add(engine: Any, data: bytes) -> None:
    from llvmlite import binding

    engine.add_object_file(binding.ObjectFileRef.from_data(data))
    engine.finalize_object()


def _section_bases(engine: Any, obj: LoadableObject) -> dict[int, int]:
    """Where each section with a symbol was put."""
    bases: dict[int, int] = {}
    for symbol in obj.symbols:
        if symbol.section in bases or symbol.section == elf.SHN_COMMON:
            continue
        address = engine.get_global_value_address(symbol.name)
        if address:
            bases[symbol.section] = address - symbol.value
    return bases


def _placed(symbols: Iterable[ObjectSymbol], bases: dict[int, int], engine: Any, module: str) -> tuple[Symbol, ...]:
    placed = []
    for symbol in symbols:
        if symbol.section == elf.SHN_COMMON:
            address = engine.get_global_value_address(symbol.name)
        elif symbol.section in bases:
            address = bases[symbol.section] + symbol.value
        else:
            continue
        placed.append(Symbol(symbol.name, address, symbol.size, module))
    return tuple(sorted(placed, key=lambda symbol: symbol.address))


def _owners(sites: array[int], functions: tuple[Symbol, ...]) -> list[Symbol]:
    addresses = [symbol.address for symbol in functions]
    return [functions[bisect_right(addresses, site) - 1] for site in sites]


def _remapped(obj: LoadableObject, bases: dict[int, int], name: str) -> tuple[TextMapping, ...]:
    """Every page with text on a memfd, so that it can be written later; neighbouring sections share a mapping."""
    page = memory.PAGE
    spans: list[list[int]] = []
    for section in sorted(obj.executable & bases.keys(), key=bases.__getitem__):
        if not obj.section_sizes[section]:
            continue
        low = bases[section] & -page
        high = (bases[section] + obj.section_sizes[section] + page - 1) & -page
        if spans and low <= spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], high)
        else:
            spans.append([low, high])
    return tuple(memory.remap_text(low, high - low, name) for low, high in spans)

"""Native images: a compiled unit of native functions, linked into this process."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sandbox.compile.cache import default_cache
from sandbox.native import Unit
from sandbox.process.once import cached_property
from sandbox.symbols import gdbjit, source_lines
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.table import Symbol, symbol_table

if TYPE_CHECKING:
    from sandbox.elf import tables

_process = ctypes.CDLL(None)
_NONE: Mapping[str, int] = MappingProxyType({})


def _process_has(name: str) -> bool:
    """Whether code that is linked can refer to `name`. LLVM silently resolves an unknown symbol to 0."""
    from llvmlite import binding

    return hasattr(_process, name) or binding.address_of_symbol(name) is not None


def _symbols(object_code: bytes) -> Iterator[tuple[str, tables.ElfSymbol]]:
    """The symbols of an object, with their names."""
    from sandbox.elf import tables

    file = tables.ElfFile(object_code)
    table = file.sections_of_type(tables.SHT_SYMTAB)[0]
    strings = file.strings(table)
    return ((tables.string_at(strings, entry.name_offset), entry) for entry in file.symbols(table))


def _undefined(object_code: bytes) -> set[str]:
    """The symbols that an object needs from elsewhere."""
    from sandbox.elf import tables

    return {name for name, entry in _symbols(object_code) if entry.info >> 4 == tables.STB_GLOBAL and not entry.section}


class Linked:
    """The process's side of an image, apart from the Python object."""

    def __init__(self, name: str, engine: Any) -> None:
        self.name = name
        self.engine = engine
        self.is_published = False
        self._claimed: frozenset[int] = frozenset()
        self.seen_by_debuggers: gdbjit.Registration | None = None

    def claim(self, addresses: Iterable[int]) -> None:
        """Tell the code at `addresses` from that of others."""
        self._claimed = frozenset(addresses)
        gdbjit.own_code.update(self._claimed)

    def withdraw(self) -> None:
        """Unmap the code and remove its names. No thread may be in it, or enter it."""
        if self.is_published:
            symbol_table.remove(self.name)
            source_lines.remove(self.name)
        if self.seen_by_debuggers:
            self.seen_by_debuggers.withdraw()
        self.engine.close()
        gdbjit.own_code.difference_update(self._claimed)


class NativeImage:
    """The code and variables of a native unit. Calls release the GIL."""

    @classmethod
    def of(cls, unit: Unit, uses: NativeImage | None = None, absolute: Mapping[str, int] = _NONE) -> NativeImage:
        """Compile a unit, or take its object from the cache, and link it. It may refer to the symbols of `uses`.

        `absolute`: numbers that its assembly has by name, as in ELF's absolute symbols; they are no part of the object.
        Raises LookupError if it refers to a symbol that neither `uses` nor the process has.
        """
        from sandbox.native.back.compile import compile_unit

        return cls(unit.name, compile_unit(unit, cache=default_cache()), uses, absolute)

    def __init__(
        self, name: str, object_code: bytes, uses: NativeImage | None = None, absolute: Mapping[str, int] = _NONE
    ) -> None:
        self.name = name
        """The name under which its code is listed, like a module's."""
        self.keep: list[object] = []
        """Objects that its code refers to, and that must live as long."""
        self.object_code = object_code
        """The object that it was linked from."""
        from llvmlite import binding

        from sandbox.native.back.compile import target_machine

        machine = target_machine()
        empty = binding.parse_assembly(f'target triple = "{machine.triple}"')
        self._engine = binding.create_mcjit_compiler(empty, machine)
        setattr(self._engine, gdbjit.OWN, True)
        self.linked = Linked(name, self._engine)
        """The registrations that `linked.withdraw()` removes."""
        self._absolute: Mapping[str, int] = {**uses._absolute, **absolute} if uses is not None else absolute
        given = {**uses._addresses, **self._absolute} if uses is not None else absolute
        for symbol in _undefined(object_code) & given.keys():
            binding.add_symbol(symbol, given[symbol])
        with gdbjit.making_own():
            self._engine.add_object_file(binding.ObjectFileRef.from_data(object_code))
            self._engine.finalize_object()
            self._addresses: dict[str, int] = self._resolved()
            self.linked.claim(self._addresses.values())
        self._functions: dict[str, Any] = {}

    def address(self, symbol: str) -> int:
        """The address of `symbol`. Raises LookupError if the image does not have it."""
        try:
            return self._addresses[symbol]
        except KeyError:
            raise LookupError(f"no symbol {symbol!r} in the native image") from None

    def _resolved(self) -> dict[str, int]:
        """The address of every symbol, read once: the JIT has a lock that may be taken during a fork."""
        missing = sorted(name for name in _undefined(self.object_code) if not _process_has(name))
        if missing:
            raise LookupError(f"{self.name} refers to {missing[0]}, which is not defined in this process")
        engine = self._engine
        return {
            name: engine.get_function_address(name) or engine.get_global_value_address(name)
            for name, entry in _symbols(self.object_code)
            if entry.info >> 4 and entry.section
        }

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Its functions and the labels of its assembly, by ascending address; each reaches to the next."""
        from sandbox.elf import tables

        file = tables.ElfFile(self.object_code)
        table = file.sections_of_type(tables.SHT_SYMTAB)[0]
        names = file.strings(table)
        text = file.sections_named(".text")[0]
        found = {s.value: tables.string_at(names, s.name_offset) for s in file.symbols(table) if s.section == text}
        starts = sorted(value for value, name in found.items() if name)
        anchor = next(value for value in starts if found[value] in self._addresses)
        base = self.address(found[anchor]) - anchor
        ends = [*starts[1:], file.sections[text].size]
        return tuple(
            Symbol(found[start], base + start, end - start, self.name) for start, end in zip(starts, ends, strict=True)
        )

    @property
    def text(self) -> tuple[int, int]:
        """Start and end of its code."""
        return self.symbols[0].address, self.symbols[-1].end

    def __contains__(self, address: int) -> bool:
        return self.text[0] <= address < self.text[1]

    def publish(self) -> None:
        """Make its code known to the symbol table, to crash reports, to profilers and to debuggers."""
        from sandbox.elf import tables

        symbol_table.add(self.name, self.symbols, is_own=True)
        perf_map.add_all((symbol.address, symbol.size, f"{symbol.name} [{self.name}]") for symbol in self.symbols)
        text = tables.ElfFile(self.object_code).sections_named(".text")[0]
        image = tables.placed(self.object_code, {text: self.text[0]})
        source_lines.add(self.name, image)
        self.linked.seen_by_debuggers = gdbjit.register(image)
        self.linked.is_published = True

    def call(self, symbol: str, *arguments: int) -> int:
        """Call a function whose parameters are all 64-bit integers or pointers; its result as a signed 64-bit number.

        Keeps the GIL, which takes long to get back: for short functions that do not wait.
        """
        function = self._functions.get(symbol) or self._function(symbol, ctypes.PYFUNCTYPE, len(arguments))
        return int(function(*arguments))

    def call_and_wait(self, symbol: str, *arguments: int) -> int:
        """The same without the GIL, for functions that wait for threads that may need it."""
        function = self._functions.get(symbol) or self._function(symbol, ctypes.CFUNCTYPE, len(arguments))
        return int(function(*arguments))

    def _function(self, symbol: str, kind: Any, parameters: int) -> Any:
        prototype = kind(ctypes.c_int64, *[ctypes.c_uint64] * parameters)
        function = self._functions[symbol] = prototype(self.address(symbol))
        return function

    def variable(self, symbol: str) -> ctypes.c_uint64:
        """A 64-bit variable of the image: its `.value` reads and writes it."""
        return ctypes.c_uint64.from_address(self.address(symbol))

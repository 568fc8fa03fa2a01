"""Native images: a compiled unit of native functions, linked into this process."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sandbox.compile.cache import default_cache
from sandbox.native import Unit
from sandbox.native.linking import LinkedObject, of_process
from sandbox.process.gil import short_switch_interval
from sandbox.process.once import cached_property
from sandbox.symbols import gdbjit, source_lines
from sandbox.symbols.perfmap import perf_map
from sandbox.symbols.table import Symbol, symbol_table

_NONE: Mapping[str, int] = MappingProxyType({})


class Linked:
    """The process's side of an image, apart from the Python object."""

    def __init__(self, name: str, code: LinkedObject) -> None:
        self.name = name
        self.code = code
        self.is_published = False
        self.seen_by_debuggers: gdbjit.Registration | None = None

    def withdraw(self) -> None:
        """Unmap the code and remove its names. No thread may be in it, or enter it."""
        if self.is_published:
            symbol_table.remove(self.name)
            source_lines.remove(self.name)
        if self.seen_by_debuggers:
            self.seen_by_debuggers.withdraw()
        self.code.close()


class NativeImage:
    """The code and variables of a native unit. Calls release the GIL."""

    @classmethod
    @short_switch_interval()
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
        self._absolute: Mapping[str, int] = {**uses._absolute, **absolute} if uses is not None else absolute
        given = {**uses._addresses, **self._absolute} if uses is not None else absolute

        def resolve(symbol: str) -> int | None:
            found = given.get(symbol)
            return of_process(symbol) if found is None else found

        code = LinkedObject(name, object_code, resolve)
        self.linked = Linked(name, code)
        """The registrations that `linked.withdraw()` removes."""
        self._addresses: dict[str, int] = code.addresses
        self._functions: dict[str, Any] = {}

    def address(self, symbol: str) -> int:
        """The address of `symbol`. Raises LookupError if the image does not have it."""
        try:
            return self._addresses[symbol]
        except KeyError:
            raise LookupError(f"no symbol {symbol!r} in the native image") from None

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
        image = tables.placed(self.object_code, self.linked.code.sections)
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


@functools.cache
def c_string(text: str) -> int:
    """The address of `text` as a C string that is never freed: native code may refer to it."""
    buffer = ctypes.create_string_buffer(text.encode("utf-8", "surrogateescape"))
    _c_strings.append(buffer)
    return ctypes.addressof(buffer)


_c_strings: list[object] = []

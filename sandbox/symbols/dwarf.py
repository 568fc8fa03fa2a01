"""Functions of a C or C++ program, from its DWARF debug information."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.abi.signatures import Floating, Integer, Parameter, Pointer, Signature, Type, Unsupported, Void
from sandbox.elf.tables import ElfFile
from sandbox.process.once import cached_property
from sandbox.symbols import demangling, exported
from sandbox.symbols.dwarf_entries import is_c_family, is_rust, is_unprototyped, name_in, name_of, producer, unit_base
from sandbox.symbols.dwarf_types import is_atomic, passed_by_reference, type_of
from sandbox.symbols.entry_places import as_placed, located_by_reference
from sandbox.symbols.symbol_tables import read_symbols

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

# Clones that gcc made, which take their arguments in a way that nothing records.
_CHANGED = re.compile(r"\.(?:constprop|isra|part|cold)\b")
_CC_NOCALL = 3
_CLANG = re.compile(r"clang version (\d+)")
_STATIC_LINK, _IMPLICIT_CONST, _SHF_COMPRESSED = 0x48, 0x21, 0x800
_SCOPES = {"DW_TAG_namespace", "DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type", "DW_TAG_subprogram"}


class DwarfInterface:
    """The functions in the debug information of an ELF file, which is read at first use."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @cached_property
    def _functions(self) -> dict[str, DIE]:
        """Symbol of a function -> its definition."""
        from elftools.elf.elffile import ELFFile

        file = ELFFile(io.BytesIO(self._data))
        if not file.has_dwarf_info():
            return {}
        dwarf = file.get_dwarf_info()
        exported.remember(dwarf, lambda: ElfFile(self._data))
        starts = dict(found for unit in dwarf.iter_CUs() for found in definitions(unit.get_top_DIE()))
        symbols = read_symbols(self._data, 0, "")
        return {s.name: starts[s.address] for s in symbols if s.address in starts and not is_changed(s.name)}

    def signature(self, name: str) -> Signature | None:
        """The signature of the function whose symbol is `name`; None if there is no debug information about it."""
        die = self._functions.get(name)
        return signature_of(name, die) if die is not None else None

    def definition(self, name: str) -> DIE | None:
        """The debug information entry that defines the function whose symbol is `name`; None if there is none."""
        return self._functions.get(name)

    def functions_with(self, attribute: str) -> frozenset[str]:
        """Empty: debug information does not keep the attributes of functions."""
        return frozenset()

    reads_frame = True
    """C functions may: debug information does not tell."""

    scratch_kept = True
    """Functions without a stub may be compiled with any flags: without patchable entries, or linked from elsewhere."""

    @cached_property
    def scratch_taken(self) -> frozenset[str]:
        """Nested functions of GNU C, which get their frame in r10."""
        if not _may_have(_STATIC_LINK, self._data):
            return frozenset()  # the entries of a large program take seconds to read
        return frozenset(name for name, die in self._functions.items() if "DW_AT_static_link" in die.attributes)


def _may_have(attribute: int, data: bytes) -> bool:
    """Whether an entry of the debug information can have a DW_AT: an abbreviation names it, or the table is compressed."""
    file = ElfFile(data)
    if file.sections_named(".zdebug_abbrev"):
        return True
    tables = file.sections_named(".debug_abbrev")
    return any(
        file.sections[table].flags & _SHF_COMPRESSED or attribute in _attributes(bytes(file.contents(table)))
        for table in tables
    )


def may_name(file: ElfFile, text: bytes) -> bool:
    """Whether the line tables may have a file of that name: it is among their strings, or these are compressed."""
    names = (".debug_line", ".debug_line_str", ".debug_str")
    return any(
        file.sections[table].flags & _SHF_COMPRESSED or text in bytes(file.contents(table))
        for name in names
        for table in file.sections_named(name)
    )


def _attributes(abbreviations: bytes) -> Iterator[int]:
    """The attributes in a `.debug_abbrev` section: after each code a tag, a flag, and pairs of attribute and form up to 0, 0."""
    numbers = _leb128(abbreviations)
    for code in numbers:
        if not code:  # the end of a unit's
            continue
        next(numbers, 0), next(numbers, 0)
        for attribute, form in zip(numbers, numbers, strict=False):
            if not attribute and not form:
                break
            if form == _IMPLICIT_CONST:
                next(numbers, 0)
            yield attribute


def _leb128(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def is_changed(name: str) -> bool:
    """Whether the symbol is that of a clone that gcc made, which may take other arguments than its source says."""
    return _CHANGED.search(name) is not None


def definitions(scope: DIE) -> Iterator[tuple[int, DIE]]:
    """The functions that are defined in `scope`, with the address in the file at which each begins."""
    for die in scope.iter_children():
        if die.tag == "DW_TAG_subprogram":
            start = _start(die)
            if start is not None:
                yield start, die
        if die.tag in _SCOPES and die.has_children:
            yield from definitions(die)


def _start(die: DIE) -> int | None:
    """Where a function begins; None if this only declares it. One with a cold part elsewhere has ranges, its own first."""
    return next((start for start, _ in ranges_of(die)), None)


def ranges_of(die: DIE) -> Iterator[tuple[int, int]]:
    """Start and end of each range of code that `die`, a function or a part of one, describes: addresses in the file."""
    low, high = die.attributes.get("DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
    if low is not None:
        is_size = high is not None and "addr" not in high.form
        yield int(low.value), int(high.value if high is not None else 0) + (int(low.value) if is_size else 0)
        return
    lists: Any = die.dwarfinfo.range_lists() if "DW_AT_ranges" in die.attributes else None
    if lists is None:
        return
    from elftools.dwarf.ranges import BaseAddressEntry

    base = unit_base(die)
    for entry in lists.get_range_list_at_offset(die.attributes["DW_AT_ranges"].value, cu=die.cu):
        if isinstance(entry, BaseAddressEntry):
            base = entry.base_address
        else:
            added = 0 if entry.is_absolute else base
            yield int(added + entry.begin_offset), int(added + entry.end_offset)


def parameters_of(function: DIE) -> Iterator[DIE]:
    """The parameters of a function, including those of a template's parameter pack."""
    for child in function.iter_children():
        if child.tag == "DW_TAG_formal_parameter":
            yield child
        elif child.tag == "DW_TAG_GNU_formal_parameter_pack":
            yield from parameters_of(child)


def signature_of(symbol: str, die: DIE) -> Signature:
    """The signature of the function `symbol`, which `die` defines."""
    parameters = tuple(Parameter(_parameter(child, die), name_of(child)) for child in parameters_of(die))
    variadic = any(child.tag == "DW_TAG_unspecified_parameters" for child in die.iter_children())
    result = _certain(type_of(die), die)
    clang = _CLANG.search(producer(die))
    may_split = clang is not None and any(map(_is_miscounted, parameters_of(die)))
    name = name_of(die) or symbol
    version = int(clang[1]) if clang else 0
    signature = Signature(name, result, parameters, variadic, is_c=True, clang=version, may_split=may_split)
    start = _start(die)
    return as_placed(signature, die, list(parameters_of(die)), start) if start is not None else signature


def _is_miscounted(parameter: DIE) -> bool:
    """Whether clang may take the parameter for one that leaves more registers than it does."""
    kind = type_of(parameter)
    is_wide = isinstance(kind, Integer) and kind.bits == 128
    return is_wide or (isinstance(kind, Floating) and kind.kind == "fp128") or is_atomic(parameter)


def _parameter(die: DIE, function: DIE) -> Type:
    kind = _certain(type_of(die), function)
    by_reference = located_by_reference(die)
    if isinstance(kind, Floating) and kind.kind == "float" and is_unprototyped(function):
        return replace(kind, kind="double")  # promoted
    return kind if by_reference is None else passed_by_reference(kind, by_reference)


def _certain(kind: Type, function: DIE) -> Type:
    """`kind`, if it is passed as in C. Of the conventions of other languages only scalars of Rust are certain."""
    convention = function.attributes.get("DW_AT_calling_convention")
    if convention is not None and convention.value >= _CC_NOCALL:
        return Unsupported(str(kind), "the function has a calling convention of its own")
    if _CLANG.search(producer(function)) and _lacks_parameters(function):
        return Unsupported(str(kind), "debug information does not have all parameters")
    if is_c_family(function) or isinstance(kind, Void):
        return kind
    if is_rust(function) and (isinstance(kind, (Pointer, Floating)) or (isinstance(kind, Integer) and kind.bits <= 64)):
        return kind
    return Unsupported(str(kind), "it may be passed in another way than in C")


def _lacks_parameters(function: DIE) -> bool:
    """Whether the name of a function in C++ has more parameters: without optimisation, clang leaves out some that are unused."""
    wanted = demangling.parameter_count(name_in(function, "DW_AT_linkage_name"))
    given = sum("DW_AT_artificial" not in parameter.attributes for parameter in parameters_of(function))
    return wanted is not None and wanted > given

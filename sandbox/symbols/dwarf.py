"""Functions of a C or C++ program, from its DWARF debug information."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sandbox.abi import layout
from sandbox.abi.signatures import (
    Array,
    Floating,
    Integer,
    Parameter,
    Pointer,
    Record,
    Signature,
    Type,
    Unsupported,
    Void,
)
from sandbox.elf.tables import ElfFile
from sandbox.process.once import cached_property
from sandbox.symbols.libraries import read_symbols

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_ATE_BOOLEAN, _ATE_COMPLEX, _ATE_FLOAT, _ATE_SIGNED, _ATE_SIGNED_CHAR = 2, 3, 4, 5, 6
# Clones that gcc made, which take their arguments in a way that nothing records.
_CHANGED = re.compile(r"\.(?:constprop|isra|part|cold)\b")
_CC_PASS_BY_REFERENCE = 4
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
        units = file.get_dwarf_info().iter_CUs()
        starts = dict(found for unit in units for found in definitions(unit.get_top_DIE()))
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
    if "DW_AT_low_pc" in die.attributes:
        return int(die.attributes["DW_AT_low_pc"].value)
    lists: Any = die.dwarfinfo.range_lists() if "DW_AT_ranges" in die.attributes else None
    if lists is None:
        return None
    from elftools.dwarf.ranges import BaseAddressEntry

    unit = die.cu.get_top_DIE().attributes
    base = unit["DW_AT_low_pc"].value if "DW_AT_low_pc" in unit else 0
    for entry in lists.get_range_list_at_offset(die.attributes["DW_AT_ranges"].value, cu=die.cu):
        if isinstance(entry, BaseAddressEntry):
            base = entry.base_address
        else:
            return int(entry.begin_offset if entry.is_absolute else base + entry.begin_offset)
    return None


def _find(die: DIE, attribute: str) -> Any:
    """The value of `attribute`, at `die` or at the declaration that it completes; None if absent."""
    while True:
        if attribute in die.attributes:
            return die.attributes[attribute].value
        for link in ("DW_AT_specification", "DW_AT_abstract_origin"):
            if link in die.attributes:
                die = die.get_DIE_from_attribute(link)
                break
        else:
            return None


def name_of(die: DIE) -> str:
    """Its name, or that of the declaration that it completes; '' if it has none."""
    return _text(_find(die, "DW_AT_name"))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def signature_of(symbol: str, die: DIE) -> Signature:
    """The signature of the function `symbol`, which `die` defines."""
    parameters = []
    variadic = False
    for child in die.iter_children():
        if child.tag == "DW_TAG_formal_parameter":
            parameters.append(Parameter(_type_of(child), name_of(child)))
        variadic = variadic or child.tag == "DW_TAG_unspecified_parameters"
    name = name_of(die) or symbol
    return Signature(name, _type_of(die), tuple(parameters), variadic, is_c=True)


def type_die(die: DIE) -> DIE | None:
    """The entry of the type that `die` refers to, itself or where it was declared; None for void."""
    while "DW_AT_type" not in die.attributes:
        link = next((name for name in ("DW_AT_specification", "DW_AT_abstract_origin") if name in die.attributes), None)
        if link is None:
            return None
        die = die.get_DIE_from_attribute(link)
    return die.get_DIE_from_attribute("DW_AT_type")


def _type_of(die: DIE) -> Type:
    """The type that `die` (a function, parameter, member, pointer or alias) refers to."""
    found = type_die(die)
    return _type(found) if found is not None else Void()


def _type(die: DIE) -> Type:
    maker = _MAKERS.get(str(die.tag))
    return maker(die) if maker else Unsupported(_spelled(die), f"DWARF calls it {die.tag}")


def _size(die: DIE) -> int:
    return int(die.attributes["DW_AT_byte_size"].value) if "DW_AT_byte_size" in die.attributes else 0


def _base(die: DIE) -> Type:
    encoding, bits, name = die.attributes["DW_AT_encoding"].value, _size(die) * 8, _spelled(die)
    if encoding == _ATE_BOOLEAN:
        return Integer(1, False, name)
    if encoding == _ATE_COMPLEX:
        return Unsupported(name, "it is a complex number")
    if encoding == _ATE_FLOAT:
        return _floating(bits, name)
    return Integer(bits, encoding in (_ATE_SIGNED, _ATE_SIGNED_CHAR), name)


def _floating(bits: int, name: str) -> Type:
    kinds = {16: "half", 32: "float", 64: "double", 128: "x86_fp80" if name == "long double" else "fp128"}
    return Floating(kinds.get(bits, "fp128"), name)


def _pointer(die: DIE) -> Type:
    return Pointer(_spelled(die))


def _alias(die: DIE) -> Type:
    kind, name = _type_of(die), _spelled(die)
    return replace(kind, name=name) if isinstance(kind, (Integer, Floating, Pointer, Record, Unsupported)) else kind


def _enumeration(die: DIE) -> Type:
    unsigned = "DW_AT_type" in die.attributes and getattr(_type_of(die), "signed", None) is False
    return Integer(_size(die) * 8, not unsigned, _spelled(die))


def _array(die: DIE) -> Type:
    kind = _type_of(die)
    if "DW_AT_GNU_vector" in die.attributes:
        return Unsupported(f"vector of {kind}", "ctypes has no vectors")
    for child in reversed([child for child in die.iter_children() if child.tag == "DW_TAG_subrange_type"]):
        kind = Array(kind, _count(child))
    return kind


def _count(subrange: DIE) -> int:
    if "DW_AT_count" in subrange.attributes:
        return int(subrange.attributes["DW_AT_count"].value)
    bound = subrange.attributes.get("DW_AT_upper_bound")
    return bound.value + 1 if bound is not None and isinstance(bound.value, int) else 0


def _record(die: DIE) -> Type:
    name = _spelled(die)
    if die.tag == "DW_TAG_union_type":
        return Unsupported(name, "ctypes cannot pass unions by value")
    if _may_go_by_reference(die):
        return Unsupported(name, "C++ may pass objects with a constructor or destructor by reference")
    members = [child for child in die.iter_children() if child.tag in ("DW_TAG_member", "DW_TAG_inheritance")]
    members = [member for member in members if "DW_AT_external" not in member.attributes]
    fields = tuple((name_of(member) or f"_{i}", _type_of(member)) for i, member in enumerate(members))
    record = Record(fields, name)
    if _agrees(record, members, _size(die)):
        return record
    # A packed struct with an unaligned field is passed on the stack, which ctypes does not implement.
    return Unsupported(name, "it is packed, or has bit fields or unions")


def _may_go_by_reference(die: DIE) -> bool:
    """Whether the class is, or could be, one that C++ does not pass like a struct of C; gcc does not say which are."""
    special = {name_of(die), "~" + name_of(die)}
    methods = [child for child in die.iter_children() if child.tag == "DW_TAG_subprogram"]
    return (
        _find(die, "DW_AT_calling_convention") == _CC_PASS_BY_REFERENCE
        or "DW_AT_containing_type" in die.attributes
        or any(name_of(method).partition("<")[0] in special for method in methods)
    )


def _agrees(record: Record, members: list[DIE], size: int) -> bool:
    """Whether the layout that we compute is the compiler's."""
    try:
        offsets = [offset for offset, _, _ in layout.fields_of(record)]
        return offsets == [_offset(member) for member in members] and layout.size_of(record) == size
    except TypeError:
        return False


def _offset(member: DIE) -> int:
    location = member.attributes.get("DW_AT_data_member_location")
    return location.value if location is not None and isinstance(location.value, int) else -1


_MAKERS: dict[str, Callable[[DIE], Type]] = {
    "DW_TAG_base_type": _base,
    "DW_TAG_pointer_type": _pointer,
    "DW_TAG_reference_type": _pointer,
    "DW_TAG_rvalue_reference_type": _pointer,
    "DW_TAG_unspecified_type": _pointer,
    "DW_TAG_typedef": _alias,
    "DW_TAG_const_type": _alias,
    "DW_TAG_volatile_type": _alias,
    "DW_TAG_restrict_type": _alias,
    "DW_TAG_atomic_type": _alias,
    "DW_TAG_enumeration_type": _enumeration,
    "DW_TAG_array_type": _array,
    "DW_TAG_structure_type": _record,
    "DW_TAG_class_type": _record,
    "DW_TAG_union_type": _record,
}

_SUFFIXES = {"DW_TAG_pointer_type": "*", "DW_TAG_reference_type": "&", "DW_TAG_rvalue_reference_type": "&&"}
_PREFIXES = {"DW_TAG_const_type": "const", "DW_TAG_volatile_type": "volatile", "DW_TAG_atomic_type": "_Atomic"}
_KEYWORDS = {"DW_TAG_structure_type": "struct", "DW_TAG_union_type": "union", "DW_TAG_enumeration_type": "enum"}
_PLUS_PLUS = frozenset({0x04, 0x1A, 0x21, 0x2B, 0x3A})


def _spelled(die: DIE | None) -> str:
    """The type at `die` as C writes it."""
    if die is None:
        return "void"
    if die.tag in _SUFFIXES:
        return _pointer_to(_target(die), _SUFFIXES[die.tag])
    if die.tag in _PREFIXES:
        return _qualified(_PREFIXES[die.tag], _spelled(_target(die)))
    if die.tag in ("DW_TAG_restrict_type", "DW_TAG_array_type"):
        return _spelled(_target(die)) + ("[]" if die.tag == "DW_TAG_array_type" else "")
    name = name_of(die) or "{...}"
    keyword = "" if is_cxx(die) else _KEYWORDS.get(str(die.tag), "")
    return f"{keyword} {name}".strip()


def _target(die: DIE) -> DIE | None:
    return die.get_DIE_from_attribute("DW_AT_type") if "DW_AT_type" in die.attributes else None


def _qualified(qualifier: str, spelled: str) -> str:
    return f"{spelled}{qualifier}" if spelled.endswith("*") else f"{qualifier} {spelled}"


def _pointer_to(target: DIE | None, mark: str) -> str:
    if target is not None and target.tag == "DW_TAG_subroutine_type":
        listed = [
            _spelled(_target(child)) for child in target.iter_children() if child.tag == "DW_TAG_formal_parameter"
        ]
        return f"{_spelled(_target(target))} ({mark})({', '.join(listed)})"
    spelled = _spelled(target)
    return f"{spelled}{mark}" if spelled[-1] in "*&" else f"{spelled} {mark}"


def is_cxx(die: DIE) -> bool:
    """Whether what `die` describes is of a program in C++."""
    language = die.cu.get_top_DIE().attributes.get("DW_AT_language")
    return language is not None and language.value in _PLUS_PLUS

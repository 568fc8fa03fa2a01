"""Types of C and C++ programs, from DWARF debug information."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from sandbox.abi import layout
from sandbox.abi.signatures import (
    Array,
    Complex,
    Floating,
    Form,
    Integer,
    Pointer,
    Record,
    Type,
    Unsupported,
    Void,
)
from sandbox.symbols.dwarf_classes import by_reference
from sandbox.symbols.dwarf_entries import is_cxx, name_of, number, producer, type_die

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_ATE_BOOLEAN, _ATE_COMPLEX, _ATE_FLOAT, _ATE_DECIMAL, _ATE_COMPLEX_INTEGER = 2, 3, 4, 0xF, 0x80
_ATE_SIGNED, _ATE_INTEGERS = frozenset({5, 6}), frozenset({1, 5, 6, 7, 8, 0x10, 0x12})
_X87_NAMES = re.compile(r"\b(?:long double|_Float64x|__float80)$|^complex$")
_BIT_INT = re.compile(r"_BitInt\((\d+)\)")
_KINDS = {16: "half", 32: "float", 64: "double"}
_SIGN_BIT = 1 << 63


def type_of(die: DIE) -> Type:
    """The type that `die` (a function, parameter, member, pointer or alias) refers to."""
    found = type_die(die)
    return _type(found) if found is not None else Void()


def is_atomic(die: DIE) -> bool:
    """Whether the type that `die` refers to is atomic."""
    found = type_die(die)
    while found is not None and str(found.tag) in _ALIASES and found.tag != "DW_TAG_atomic_type":
        found = type_die(found)
    return found is not None and found.tag == "DW_TAG_atomic_type"


def passed_by_reference(kind: Type, is_reference: bool) -> Type:
    """A class of C++, passed by reference or not."""
    if isinstance(kind, Unsupported):
        return replace(kind, by_reference=is_reference)
    if not isinstance(kind, Record) or (kind.form is None and not is_reference):
        return kind
    starts = tuple((8 * offset, 0) for offset, _, _ in layout.fields_of(kind))
    form = kind.form or Form(layout.size_of(kind), layout.alignment_of(kind), starts, _BY_REFERENCE)
    return replace(kind, form=replace(form, by_reference=is_reference))


def _type(die: DIE) -> Type:
    maker = _MAKERS.get(str(die.tag))
    return maker(die) if maker else Unsupported(_spelled(die), f"DWARF calls it {die.tag}")


def _size(die: DIE) -> int:
    return number(die, "DW_AT_byte_size") or 0


def _base(die: DIE) -> Type:
    encoding, bits, name = number(die, "DW_AT_encoding"), _size(die) * 8, _spelled(die)
    if not bits:
        return Void()
    if encoding == _ATE_BOOLEAN:
        return Integer(1, False, name)
    if encoding == _ATE_FLOAT:
        return _floating(bits, name)
    if encoding == _ATE_COMPLEX:
        part = name.removeprefix("complex ")
        element = _floating(bits // 2, part)
        if isinstance(element, Floating):  # clang calls each `complex`
            return Complex(replace(element, name=part.removeprefix("complex")), name)
        return element
    if encoding == _ATE_DECIMAL:
        return Floating(f"decimal{bits}", name)
    if encoding == _ATE_COMPLEX_INTEGER and "omplex" in name:
        return Complex(Integer(bits // 2, "unsigned" not in name), name)
    return _integer(bits, name, encoding in _ATE_SIGNED, encoding in _ATE_INTEGERS)


def _integer(bits: int, name: str, signed: bool, is_integer: bool) -> Type:
    exact = _BIT_INT.search(name)
    if not is_integer or bits > (64 if exact else 128):
        return Unsupported(name, "it is no integer or floating-point number of C")
    return Integer(int(exact[1]) if exact else bits, signed, name)


def _floating(bits: int, name: str) -> Type:
    """Those of 16 bytes have different formats, which only their names tell."""
    if bits in _KINDS:
        return Floating("bfloat" if "bf16" in name or "bfloat" in name else _KINDS[bits], name)
    if bits == 128 and (_X87_NAMES.search(name) or "loat128" in name):
        return Floating("fp128" if "loat128" in name else "x86_fp80", name)
    return Unsupported(name, "its format is not known")


def _pointer(die: DIE) -> Type:
    return Pointer(_spelled(die))


def _member_pointer(die: DIE) -> Type:
    """The Itanium C++ ABI: to data, an offset; to a function, its address or place in the table, and what to add to `this`."""
    target = type_die(die)
    if target is not None and target.tag == "DW_TAG_subroutine_type":
        return Record((("ptr", Integer(64, False)), ("adj", Integer(64, True))), _spelled(die))
    return Integer(64, True, _spelled(die))


def _alias(die: DIE) -> Type:
    kind, name = type_of(die), _spelled(die)
    if isinstance(kind, (Integer, Floating, Complex, Pointer, Record, Unsupported)):
        return replace(kind, name=name)
    return kind


def _enumeration(die: DIE) -> Type:
    stored = type_of(die) if "DW_AT_type" in die.attributes else None
    bits = _size(die) * 8 or getattr(stored, "bits", 0)
    if not bits:
        return Unsupported(_spelled(die), "its size is not known")
    return Integer(bits, getattr(stored, "signed", None) is not False, _spelled(die))


def _array(die: DIE) -> Type:
    kind = type_of(die)
    for child in reversed([child for child in die.iter_children() if child.tag == "DW_TAG_subrange_type"]):
        kind = Array(kind, _count(child) or 0, is_vector="DW_AT_GNU_vector" in die.attributes)
    return kind


def _count(subrange: DIE) -> int | None:
    """The number of elements; None for the last member of a structure whose source does not say it."""
    count, bound = number(subrange, "DW_AT_count"), number(subrange, "DW_AT_upper_bound")
    if count is None and bound is None:
        return None
    found = count if count is not None else (bound or 0) + 1
    return found if found < _SIGN_BIT else 0


# -- structures ---------------------------------------------------------------------------------------------------

_BY_REFERENCE = "C++ may pass objects with a constructor or destructor by reference"


def member_bits(die: DIE) -> tuple[int, int]:
    """The first bit of a member, and its number of bits if it is a bit field, or else 0."""
    size = number(die, "DW_AT_bit_size") or 0
    start = (number(die, "DW_AT_data_member_location") or 0) * 8 + (number(die, "DW_AT_data_bit_offset") or 0)
    old = number(die, "DW_AT_bit_offset")
    if size and old is not None:
        # DWARF 3 and older count from the highest bit of the container.
        old -= 2 * _SIGN_BIT if old >= _SIGN_BIT else 0  # clang writes a negative one so
        start += (_size(die) or layout.size_of(type_of(die))) * 8 - size - old
    return start, size


def members_of(structure: DIE) -> Iterator[DIE]:
    """The members and bases, without static members."""
    for child in structure.iter_children():
        if child.tag in ("DW_TAG_member", "DW_TAG_inheritance") and "DW_AT_external" not in child.attributes:
            yield child


def _record(die: DIE) -> Type:
    name, is_reference = _spelled(die), by_reference(die)
    members = list(members_of(die))
    known = number(die, "DW_AT_byte_size") is not None and not any(map(_has_no_place, members))
    if not members and _size(die) > max(1, number(die, "DW_AT_alignment") or 0):
        known = False  # a compiler leaves out members that nothing uses
    if not known or any(child.tag == "DW_TAG_variant_part" for child in die.iter_children()):
        return Unsupported(name, "its layout is not known", bool(is_reference))
    record = Record(tuple((name_of(member) or f"_{i}", type_of(member)) for i, member in enumerate(members)), name)
    bits = tuple(map(member_bits, members))
    try:
        if _is_plain(record, bits, die) and is_reference is False:
            return record
        return replace(record, form=_form(die, record, bits, is_reference))
    except TypeError:
        return Unsupported(name, "the layout of one of its members is not known", bool(is_reference))


def _has_no_place(member: DIE) -> bool:
    """Whether its offset is computed at run time, as a virtual base's."""
    place = member.attributes.get("DW_AT_data_member_location")
    return place is not None and not isinstance(place.value, int)


def _is_plain(record: Record, bits: tuple[tuple[int, int], ...], die: DIE) -> bool:
    """Whether C's rules give the compiler's layout, and ctypes can pass the structure."""
    computed = tuple((8 * offset, 0) for offset, _, _ in layout.fields_of(record))
    is_special = die.tag == "DW_TAG_union_type" or _is_flexible(die) or _given_alignment(die)
    is_special = is_special or any(form.in_memory or form.has_gaps for form in _forms_in(record))
    if _is_gcc(die) and _has_empty_array(record, bits):
        return False
    return not is_special and computed == bits and layout.size_of(record) == _size(die)


def _form(die: DIE, record: Record, bits: tuple[tuple[int, int], ...], is_reference: bool | None) -> Form:
    size = _size(die)
    alignment = max(_natural_alignment(record, bits, size), _given_alignment(die))
    is_union = die.tag == "DW_TAG_union_type"
    why = "it is packed or aligned, or has bit fields or unions"
    if is_reference is not False or is_union:
        why = "ctypes cannot pass unions by value" if is_union else _BY_REFERENCE
    in_memory = any(form.in_memory for form in _forms_in(record))
    in_memory = in_memory or (_is_flexible(die) and not _ignores_flexible(die))
    has_gaps = any(form.has_gaps for form in _forms_in(record))
    if _is_gcc(die) and not is_union:
        has_gaps = has_gaps or _has_gaps(record, bits, size, alignment) or _has_empty_array(record, bits)
    return Form(size, alignment, bits, why, is_reference, in_memory, has_gaps)


def _forms_in(record: Record) -> Iterator[Form]:
    """The forms of the records that it directly contains, also in arrays."""
    for _, field in record.fields:
        while isinstance(field, Array):
            field = field.element
        if isinstance(field, Record) and field.form:
            yield field.form


def _is_gcc(die: DIE) -> bool:
    return "clang" not in producer(die)


def _has_empty_array(record: Record, bits: tuple[tuple[int, int], ...]) -> bool:
    """Whether it has an array of no elements inside a word: gcc classifies the word as if the array had one."""
    pairs = zip(record.fields, bits, strict=True)
    return any(isinstance(field, Array) and not field.count and start % 64 for (_, field), (start, _) in pairs)


def _natural_alignment(record: Record, bits: tuple[tuple[int, int], ...], size: int) -> int:
    """That of the members; 1 if a misplaced member shows that the structure is packed."""
    alignments = [layout.alignment_of(field) for _, field in record.fields]
    alignment = max(alignments, default=1)
    pairs = zip(alignments, bits, strict=True)
    if any(start % (8 * each) and not length for each, (start, length) in pairs):
        return 1
    while size % alignment:
        alignment //= 2
    return alignment


def _given_alignment(die: DIE) -> int:
    """The alignment that the source gives the structure or one of its members; 0 if it gives none."""
    found = [number(each, "DW_AT_alignment") or 0 for each in (die, *members_of(die))]
    return max([*found, *(_of_alias(type_die(member)) for member in members_of(die))])


def _of_alias(die: DIE | None) -> int:
    while die is not None and str(die.tag) in _ALIASES:
        given = number(die, "DW_AT_alignment")
        if given:
            return given
        die = type_die(die)
    return 0


def _is_flexible(die: DIE) -> bool:
    """Whether the last member is an array without a size."""
    kinds = [type_die(member) for member in members_of(die)]
    last = kinds[-1] if kinds else None
    while last is not None and str(last.tag) in _ALIASES:
        last = type_die(last)
    if last is None or last.tag != "DW_TAG_array_type":
        return False
    return any(_count(child) is None for child in last.iter_children() if child.tag == "DW_TAG_subrange_type")


def _ignores_flexible(die: DIE) -> bool:
    """gcc passes such a structure of C as if it had no array; other compilers, and gcc in C++, on the stack."""
    return _is_gcc(die) and not is_cxx(die)


def _has_gaps(record: Record, bits: tuple[tuple[int, int], ...], size: int, alignment: int) -> bool:
    """Whether alignment alone does not explain where the members are."""
    end = 0 if record.fields else 8  # the size of an empty class
    for (_, field), (start, length) in zip(record.fields, bits, strict=True):
        unit = layout.size_of(field) * 8 if length else layout.alignment_of(field) * 8
        if start - end >= unit:
            return True
        end = max(end, start + (length or layout.size_of(field) * 8))
    return -(-end // (8 * alignment)) * alignment != size


_ALIASES = (
    "DW_TAG_typedef",
    "DW_TAG_const_type",
    "DW_TAG_volatile_type",
    "DW_TAG_restrict_type",
    "DW_TAG_atomic_type",
    "DW_TAG_template_alias",
)
_MAKERS: dict[str, Callable[[DIE], Type]] = {
    **dict.fromkeys(_ALIASES, _alias),
    "DW_TAG_base_type": _base,
    "DW_TAG_pointer_type": _pointer,
    "DW_TAG_reference_type": _pointer,
    "DW_TAG_rvalue_reference_type": _pointer,
    "DW_TAG_unspecified_type": _pointer,
    "DW_TAG_ptr_to_member_type": _member_pointer,
    "DW_TAG_enumeration_type": _enumeration,
    "DW_TAG_array_type": _array,
    "DW_TAG_structure_type": _record,
    "DW_TAG_class_type": _record,
    "DW_TAG_union_type": _record,
}

# -- spelling -----------------------------------------------------------------------------------------------------

_SUFFIXES = {"DW_TAG_pointer_type": "*", "DW_TAG_reference_type": "&", "DW_TAG_rvalue_reference_type": "&&"}
_PREFIXES = {"DW_TAG_const_type": "const", "DW_TAG_volatile_type": "volatile", "DW_TAG_atomic_type": "_Atomic"}
_KEYWORDS = {"DW_TAG_structure_type": "struct", "DW_TAG_union_type": "union", "DW_TAG_enumeration_type": "enum"}


def type_name(die: DIE) -> str:
    """The type that `die` (a parameter or variable) refers to, as C writes it."""
    return _spelled(type_die(die))


def _spelled(die: DIE | None) -> str:
    """The type at `die` as C writes it."""
    if die is None:
        return "void"
    if die.tag in _SUFFIXES:
        return _pointer_to(_target(die), _SUFFIXES[die.tag])
    if die.tag in _PREFIXES:
        return _qualified(_PREFIXES[die.tag], _spelled(_target(die)))
    if die.tag == "DW_TAG_ptr_to_member_type":
        owner = (
            die.get_DIE_from_attribute("DW_AT_containing_type") if "DW_AT_containing_type" in die.attributes else None
        )
        return f"{_spelled(_target(die))} {name_of(owner) if owner else ''}::*"
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

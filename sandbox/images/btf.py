"""Prototypes of functions, and the types that their pointers refer to with field offsets, as BTF provides in the kernel.

They are read from the debug information of C and C++ programs; for other programs from signatures, which have no structures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.abi import signatures
from sandbox.images.process_text import symbol_named
from sandbox.loading.module import find_module
from sandbox.symbols.dwarf import DwarfInterface
from sandbox.symbols.dwarf_entries import is_cxx, name_of, type_die

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

    from sandbox.loading.module import Module


@dataclass(frozen=True)
class BtfType:
    """Base of all types, without modifiers (const, volatile, typedef)."""


@dataclass(frozen=True)
class Void(BtfType):
    """No value."""


@dataclass(frozen=True)
class Int(BtfType):
    """An integer of `bits` bits."""

    bits: int
    signed: bool


@dataclass(frozen=True)
class Enum(BtfType):
    """An enumeration, stored in `bits` bits."""

    bits: int
    signed: bool


@dataclass(frozen=True)
class Pointer(BtfType):
    """An address. `find_target` gives the type that it leads to; types may refer to themselves."""

    find_target: Callable[[], BtfType]

    @property
    def target(self) -> BtfType:
        """The type of what the pointer leads to."""
        return self.find_target()


@dataclass(frozen=True)
class Array(BtfType):
    """Elements in a row."""

    element: BtfType


@dataclass(frozen=True)
class Member:
    """A field at `bit_offset` bits from its structure's start; `bit_size` is 0 unless it is a bitfield.

    `name` is empty for an anonymous structure or union.
    """

    name: str
    bit_offset: int
    bit_size: int
    find_type: Callable[[], BtfType]

    @property
    def type(self) -> BtfType:
        """The field's type."""
        return self.find_type()


@dataclass(frozen=True)
class Struct(BtfType):
    """A structure or union of `size` bytes; 0 if it may be passed by reference (C++), or its size is not known."""

    members: tuple[Member, ...]
    size: int = 0

    def find(self, name: str) -> Member | None:
        """The member called `name`, also one of an anonymous member; its offset counts from this structure's start."""
        for member in self.members:
            if member.name == name:
                return member
            if not member.name and isinstance(inner := member.type, Struct) and (found := inner.find(name)):
                return Member(name, member.bit_offset + found.bit_offset, found.bit_size, found.find_type)
        return None


@dataclass(frozen=True)
class Float(BtfType):
    """A number in a floating-point register: float or double."""


@dataclass(frozen=True)
class Other(BtfType):
    """A type that has no number: a complex number, a vector, a function."""


@dataclass(frozen=True)
class Stored:
    """A part of a result that is stored at `offset` bytes from the address in the first argument; '' is all of it."""

    name: str
    type: BtfType
    offset: int


@dataclass(frozen=True)
class Prototype:
    """The parameters of a function, as (name, type) in order, and its result type.

    `numbers`: which integer argument each parameter is, where the order does not tell; None for one in a vector register.
    """

    parameters: tuple[tuple[str, BtfType], ...]
    returns: BtfType
    numbers: tuple[int | None, ...] | None = None
    stored: tuple[Stored, ...] = ()


def prototype(function: str) -> Prototype | None:
    """The prototype of `function` (`name` or `module:name`).

    None if there is no such function in a module, or its source does not name the parameters.
    """
    try:
        symbol = symbol_named(function)
        module = find_module(symbol.module)
    except LookupError:
        return None
    return _prototype_in(module, symbol.name)


def _prototype_in(module: Module, name: str) -> Prototype | None:
    interface = module.interface
    if isinstance(interface, DwarfInterface):
        die = interface.definition(name)
        return of_definition(die) if die is not None else None
    signature = interface.signature(name)
    if signature is None or not all(parameter.name for parameter in signature.parameters):
        return None
    return Prototype(tuple(map(_of_parameter, signature.parameters)), _of_signature(signature.returns))


def _of_parameter(parameter: signatures.Parameter) -> tuple[str, BtfType]:
    """One with `byval` is no pointer in a register: its target is passed."""
    return parameter.name, Other() if parameter.copied else _of_signature(parameter.type)


def _of_signature(kind: signatures.Type) -> BtfType:
    """Integers whose source has no signs (LLVM IR) are taken for signed ones, as C's int."""
    if isinstance(kind, signatures.Integer):
        return Int(-kind.bits // 8 * -8, kind.signed is not False)
    if isinstance(kind, signatures.Pointer):
        return Pointer(Void)
    if isinstance(kind, signatures.Floating) and kind.kind in ("float", "double"):
        return Float()
    return Void() if isinstance(kind, signatures.Void) else Other()


# -- DWARF --------------------------------------------------------------------------------------------------------

_SIGNED = frozenset({0x05, 0x06})
_COMPLEX, _FLOATING = 0x03, 0x04
_POINTERS = frozenset({"DW_TAG_pointer_type", "DW_TAG_reference_type", "DW_TAG_rvalue_reference_type"})
_MODIFIERS = frozenset(
    f"DW_TAG_{name}" for name in ("typedef", "const_type", "volatile_type", "restrict_type", "atomic_type")
)
_STRUCTURES = frozenset({"DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"})


def of_definition(die: DIE) -> Prototype:
    """The prototype of the function that a debug information entry defines."""
    parameters = [child for child in die.iter_children() if child.tag == "DW_TAG_formal_parameter"]
    return Prototype(tuple((name_of(child), _type_of(child)) for child in parameters), _type_of(die))


def _number(die: DIE, name: str) -> int:
    found = die.attributes.get(name)
    return found.value if found is not None and isinstance(found.value, int) else 0


def _type_of(die: DIE) -> BtfType:
    """The type that `die` refers to."""
    found = type_die(die)
    return _type(found) if found is not None else Void()


def _type(die: DIE) -> BtfType:
    tag = str(die.tag)
    bits = _number(die, "DW_AT_byte_size") * 8
    if tag in _MODIFIERS:
        return _type_of(die)
    if tag in _POINTERS:
        return Pointer(lambda: _type_of(die))
    if tag in _STRUCTURES:
        return Struct(tuple(_members(die)), 0 if is_cxx(die) else bits // 8)
    if tag == "DW_TAG_array_type":
        return Array(_type_of(die))
    if tag == "DW_TAG_enumeration_type":
        return _enumeration(die, bits)
    encoding = _number(die, "DW_AT_encoding")
    if tag != "DW_TAG_base_type" or encoding == _COMPLEX:
        return Other()
    if encoding == _FLOATING:
        return Float() if bits <= 64 else Other()
    return Int(bits, encoding in _SIGNED)


def _enumeration(die: DIE, bits: int) -> Enum:
    """The kernel takes each for an s32; smaller ones, which its BTF does not have, may be stored unsigned."""
    stored = _type_of(die)
    return Enum(bits, not (bits < 32 and isinstance(stored, Int) and not stored.signed))


def _members(structure: DIE) -> Iterator[Member]:
    for child in structure.iter_children():
        if child.tag in ("DW_TAG_member", "DW_TAG_inheritance") and "DW_AT_external" not in child.attributes:
            yield _member(child)


def _member(die: DIE) -> Member:
    size = _number(die, "DW_AT_bit_size")
    start = _number(die, "DW_AT_data_member_location") * 8 + _number(die, "DW_AT_data_bit_offset")
    if size and "DW_AT_bit_offset" in die.attributes:
        # DWARF 3 and older count from the highest bit of the container.
        start += _number(die, "DW_AT_byte_size") * 8 - size - _number(die, "DW_AT_bit_offset")
    name = "" if die.tag == "DW_TAG_inheritance" else name_of(die)
    return Member(name, start, size, lambda: _type_of(die))

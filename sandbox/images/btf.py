"""Prototypes of functions, and the types that their pointers refer to with field offsets, as BTF provides in the kernel.

They are read from the debug information of C and C++ programs; for other programs from signatures, which have no structures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from sandbox.abi import signatures
from sandbox.abi.convention import ARGUMENTS, STACK, Place, argument_places, argument_words, result_in_ax
from sandbox.images.process_text import symbol_named
from sandbox.loading.module import find_module
from sandbox.symbols.dwarf import DwarfInterface, parameters_of, signature_of
from sandbox.symbols.dwarf_entries import name_of, number, type_die
from sandbox.symbols.dwarf_types import member_bits, members_of

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
    """A structure or union."""

    members: tuple[Member, ...]

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

    `numbers`: the number of each parameter among the integer arguments, from 0; None for one that is not one of them, or whose
    place is not known. Without them, each parameter is an integer argument. `find_also` gives other names of the parameters.
    """

    parameters: tuple[tuple[str, BtfType], ...]
    returns: BtfType
    numbers: tuple[int | None, ...] | None = None
    stored: tuple[Stored, ...] = ()
    find_also: Callable[[], tuple[str, ...]] = tuple
    words: frozenset[int] | None = None
    """The integer arguments, from 0, that hold a parameter or a part of one; None if that is not known."""
    in_ax: bool | None = None
    """Whether the register ax holds the result, a part of it, or its address; None if that is not known."""

    def index(self, name: str) -> int | None:
        """The number, from 0, of the parameter with this name; None if there is none."""
        names = [each for each, _ in self.parameters]
        if name not in names:
            names = list(self.find_also())
        return names.index(name) if name in names else None

    def number(self, parameter: int) -> int | None:
        """The number, from 0, of parameter number `parameter` among the integer arguments; None if it is not one of them."""
        return parameter if self.numbers is None else self.numbers[parameter]


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
    return of_signature(signature) if signature is not None else None


def of_signature(signature: signatures.Signature) -> Prototype | None:
    """The prototype of a function with this signature; None if that does not name the parameters."""
    if not all(parameter.name for parameter in signature.parameters):
        return None
    parameters = tuple((each.name, _of_signature(each.type)) for each in signature.passed)
    words, in_ax = argument_words(signature), result_in_ax(signature)
    return Prototype(parameters, _of_signature(signature.returns), _numbers(signature), words=words, in_ax=in_ax)


def _numbers(signature: signatures.Signature) -> tuple[int | None, ...]:
    """The number of each parameter among the integer arguments: the registers, then the words on the stack."""
    return tuple(_number_at(parameter, place) for parameter, place in argument_places(signature)[0])


def _number_at(parameter: signatures.Parameter, place: Place | None) -> int | None:
    is_integer = isinstance(parameter.type, (signatures.Integer, signatures.Pointer)) and parameter.copied is None
    if place is None or len(place.pieces) != 1 or not (is_integer or place.indirect):
        return None
    _, source, size = place.pieces[0]
    if source in ARGUMENTS:
        return ARGUMENTS.index(source)
    return len(ARGUMENTS) + (source - STACK) // 8 if source >= STACK and size <= 8 else None


def _character() -> BtfType:
    return Int(8, True)


def _of_signature(kind: signatures.Type) -> BtfType:
    """Integers whose source has no signs (LLVM IR) are taken for signed ones, as C's int."""
    if isinstance(kind, signatures.Integer):
        return Int(-kind.bits // 8 * -8, kind.signed is not False)
    if isinstance(kind, signatures.Pointer):
        return Pointer(_character if kind.is_text else Void)
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
    signature = signature_of(name_of(die), die)
    places, _ = argument_places(signature)
    types = [type_of(child) for child in parameters_of(die)]
    pairs = [
        (parameter.name, _address_of(kind) if place is not None and place.indirect else kind)
        for (parameter, place), kind in zip(places, types, strict=True)
    ]
    numbers = tuple(_number_at(*each) for each in places)
    words, in_ax = argument_words(signature), result_in_ax(signature)
    return Prototype(tuple(pairs), type_of(die), numbers, words=words, in_ax=in_ax)


def _address_of(kind: BtfType) -> Pointer:
    """What is passed for an object of C++ that is passed by reference."""
    return Pointer(lambda: kind)


def type_of(die: DIE) -> BtfType:
    """The type that `die` refers to."""
    found = type_die(die)
    return _type(found) if found is not None else Void()


def _type(die: DIE) -> BtfType:
    tag = str(die.tag)
    bits = (number(die, "DW_AT_byte_size") or 0) * 8
    if tag in _MODIFIERS:
        return type_of(die)
    if tag in _POINTERS:
        return Pointer(partial(_readable, die))
    if tag in _STRUCTURES:
        return Struct(tuple(_members(die)))
    if tag == "DW_TAG_array_type":
        return Array(type_of(die))
    if tag == "DW_TAG_enumeration_type":
        return _enumeration(die, bits)
    encoding = number(die, "DW_AT_encoding") or 0
    if tag != "DW_TAG_base_type" or encoding == _COMPLEX:
        return Other()
    if encoding == _FLOATING:
        return Float() if bits <= 64 else Other()
    return Int(bits, encoding in _SIGNED)


def _readable(die: DIE) -> BtfType:
    """The type that `die` refers to, which is looked for when it is asked for."""
    try:
        return type_of(die)
    except Exception:  # reading damaged debug information raises anything
        return Other()


def _enumeration(die: DIE, bits: int) -> Enum:
    """The kernel takes each for an s32; smaller ones, which its BTF does not have, may be stored unsigned."""
    stored = type_of(die)
    return Enum(bits, not (bits < 32 and isinstance(stored, Int) and not stored.signed))


def _members(structure: DIE) -> Iterator[Member]:
    for die in members_of(structure):
        name = "" if die.tag == "DW_TAG_inheritance" else name_of(die)
        yield Member(name, *member_bits(die), partial(_readable, die))

"""Entries of debug information: names, attributes and languages."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_PLUS_PLUS = frozenset({0x04, 0x11, 0x19, 0x1A, 0x21, 0x2A, 0x2B, 0x3A})
_C = frozenset({0x01, 0x02, 0x0C, 0x10, 0x1D, 0x2C, 0x3E, 0x8001}) | _PLUS_PLUS
"""C, C++ and Objective C of all versions, and assembly."""
_RUST, _ASSEMBLY = 0x1C, 0x8001


def find(die: DIE, attribute: str) -> Any:
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
    return _text(find(die, "DW_AT_name"))


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def number(die: DIE, attribute: str) -> int | None:
    """A number among its own attributes; None if it is absent, or computed at run time."""
    found = die.attributes.get(attribute)
    return found.value if found is not None and isinstance(found.value, int) else None


def type_die(die: DIE) -> DIE | None:
    """The entry of the type that `die` refers to, itself or where it was declared; None for void."""
    while "DW_AT_type" not in die.attributes:
        link = next((name for name in ("DW_AT_specification", "DW_AT_abstract_origin") if name in die.attributes), None)
        if link is None:
            return None
        die = die.get_DIE_from_attribute(link)
    found = die.get_DIE_from_attribute("DW_AT_type")
    if "DW_AT_signature" in found.attributes:  # a declaration of a type that is in a unit of its own
        with contextlib.suppress(KeyError):  # pyelftools finds those of DWARF 4
            return found.get_DIE_from_attribute("DW_AT_signature")
    return found


def _language(die: DIE) -> int | None:
    return number(die.cu.get_top_DIE(), "DW_AT_language")


def is_cxx(die: DIE) -> bool:
    """Whether what `die` describes is of a program in C++."""
    return _language(die) in _PLUS_PLUS


def may_be_cxx(die: DIE) -> bool:
    """Whether what `die` describes may be of a program in C++: units that several share, made by dwz, have no language."""
    return _language(die) in {*_PLUS_PLUS, None}


def is_c_family(die: DIE) -> bool:
    """Whether what `die` describes follows the calling convention of C, as far as its language goes."""
    return _language(die) in {*_C, None}


def is_assembly(die: DIE) -> bool:
    """Whether what `die` describes was written in assembly."""
    return _language(die) == _ASSEMBLY


def is_rust(die: DIE) -> bool:
    """Whether what `die` describes is of a program in Rust."""
    return _language(die) == _RUST


def producer(die: DIE) -> str:
    """The name of the compiler, with its version."""
    return name_in(die.cu.get_top_DIE(), "DW_AT_producer")


def name_in(die: DIE, attribute: str) -> str:
    """The text of an attribute; '' if it is absent."""
    return _text(find(die, attribute))


def unit_base(die: DIE) -> int:
    """The address that ranges and location lists of its unit begin to count from."""
    unit = die.cu.get_top_DIE().attributes
    return int(unit["DW_AT_low_pc"].value) if "DW_AT_low_pc" in unit else 0


def is_unprototyped(function: DIE) -> bool:
    """Whether the function is defined in C without a prototype, as before C89."""
    return _language(function) in _C - _PLUS_PLUS - {_ASSEMBLY} and not find(function, "DW_AT_prototyped")

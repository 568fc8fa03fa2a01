"""Classes of C++ that are passed by reference: the rules of the Itanium C++ ABI, section 3.1.1, on debug information."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandbox.symbols.dwarf_entries import find, may_be_cxx, name_of, number, type_die

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

CLASSES = frozenset({"DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"})
MODIFIERS = frozenset(
    f"DW_TAG_{name}"
    for name in ("typedef", "const_type", "volatile_type", "restrict_type", "atomic_type", "template_alias")
)
_REFERENCES = frozenset({"DW_TAG_reference_type", "DW_TAG_rvalue_reference_type"})
_CC_PASS_BY_REFERENCE, _CC_PASS_BY_VALUE = 4, 5
_DEFAULTED_IN_CLASS = 1


def by_reference(die: DIE) -> bool | None:
    """Whether objects of the class are passed by reference; None if that is not known."""
    said = find(die, "DW_AT_calling_convention")
    if said in (_CC_PASS_BY_REFERENCE, _CC_PASS_BY_VALUE):
        return bool(said == _CC_PASS_BY_REFERENCE)
    if not may_be_cxx(die):
        return False
    if "DW_AT_declaration" in die.attributes:
        return None
    children = list(die.iter_children())
    if "DW_AT_containing_type" in die.attributes or any("DW_AT_virtuality" in child.attributes for child in children):
        return True
    methods = [child for child in children if child.tag == "DW_TAG_subprogram"]
    if any(_ends(method) and not _is_trivial(method) for method in methods):
        return True
    return _by_parts(die, [(kind, method) for method in methods if (kind := _copies(method, die))])


def _by_parts(die: DIE, copying: list[tuple[str, DIE]]) -> bool | None:
    """The answer for a class without virtual methods and bases. `copying`: the methods that copy or move an object."""
    constructors = [(kind, method) for kind, method in copying if kind != "assign"]
    if any(not _is_trivial(method) for kind, method in constructors if kind != "perhaps"):
        return True
    inside = [by_reference(part) for part in _classes_in(die)]
    if True in inside:
        return True
    if None in inside or any(kind == "perhaps" for kind, _ in constructors):
        return None
    if constructors:
        return all("DW_AT_deleted" in method.attributes for _, method in constructors)
    return bool(copying)  # a move assignment deletes the constructor that is not declared


def _ends(method: DIE) -> bool:
    """Whether it is a destructor that the source declares."""
    return name_of(method).startswith("~") and "DW_AT_artificial" not in method.attributes


def _is_trivial(method: DIE) -> bool:
    """Whether it is deleted or defaulted in the class."""
    return "DW_AT_deleted" in method.attributes or number(method, "DW_AT_defaulted") == _DEFAULTED_IN_CLASS


def _copies(method: DIE, owner: DIE) -> str:
    """`copy` or `move` for such a constructor, `assign` for a move assignment; '' for other methods and implicit ones.

    `perhaps`: it is a constructor that has further parameters, which may have default arguments.
    """
    name, class_name = name_of(method), name_of(owner)
    if name not in ("operator=", class_name, class_name.partition("<")[0]) or "DW_AT_artificial" in method.attributes:
        return ""
    given = [child for child in method.iter_children() if child.tag == "DW_TAG_formal_parameter"][1:]
    taken = type_die(given[0]) if given else None
    if taken is None or taken.tag not in _REFERENCES or not _is_same(stripped(type_die(taken)), owner):
        return ""
    is_move = taken.tag == "DW_TAG_rvalue_reference_type"
    if name == "operator=":
        return "assign" if is_move else ""
    if len(given) > 1:
        return "perhaps"
    return "move" if is_move else "copy"


def _is_same(one: DIE | None, other: DIE) -> bool:
    return one is not None and one.offset == other.offset


def _classes_in(die: DIE) -> Iterator[DIE]:
    """The classes of its members and bases."""
    for child in die.iter_children():
        if child.tag in ("DW_TAG_member", "DW_TAG_inheritance") and "DW_AT_external" not in child.attributes:
            found = stripped(type_die(child))
            while found is not None and found.tag == "DW_TAG_array_type":
                found = stripped(type_die(found))
            if found is not None and found.tag in CLASSES:
                yield found


def stripped(die: DIE | None) -> DIE | None:
    """The type without its modifiers; None for void."""
    while die is not None and die.tag in MODIFIERS:
        die = type_die(die)
    return die

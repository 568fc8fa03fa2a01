"""The variables that debug information describes at an instruction, with their types and where their values are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sandbox.elf.frame_address import frame_address
from sandbox.images.btf import BtfType, Float, Other, Struct, type_of
from sandbox.symbols.debugged import DebuggedFunction, function_at
from sandbox.symbols.dwarf import ranges_of
from sandbox.symbols.dwarf_entries import name_of
from sandbox.symbols.dwarf_types import type_name
from sandbox.symbols.locations import FrameBase, Location, NotFetchable, location_at

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_SCOPES = frozenset(("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"))
_VARIABLES = frozenset(("DW_TAG_formal_parameter", "DW_TAG_variable"))


@dataclass(frozen=True)
class Variable:
    """A variable at an instruction. `problem`: why it cannot be fetched, without its name; '' if it can.

    `location` is None if it, and what is in it, is nowhere that a fetch argument can name.
    `type_name`: its type as C writes it.
    """

    name: str
    type: BtfType
    type_name: str
    location: Location | None
    problem: str = ""


def variables_at(address: int) -> dict[str, Variable] | None:
    """Those in scope at the instruction at `address`: of its function, of inner blocks, of functions that were inlined there.

    Of several with a name, the innermost. None if there is no debug information about the function, or none that can be read.
    """
    try:
        function = function_at(address)
        return variables_of(function, address, lambda: frame_address(address)) if function is not None else None
    except Exception:  # reading damaged debug information raises anything
        return None


def variables_of(function: DebuggedFunction, address: int, frame: FrameBase) -> dict[str, Variable]:
    """The same of a function that has the instruction, in this process or another one. Damaged information raises anything."""
    visible = _visible(function.die, address - function.code.base)
    innermost = {name: die for die in visible if (name := name_of(die))}
    return {name: _variable(name, die, function, address, frame) for name, die in innermost.items()}


def _variable(name: str, die: DIE, function: DebuggedFunction, address: int, frame: FrameBase) -> Variable:
    kind, spelled = type_of(die), type_name(die)
    try:
        found = location_at(die, function.die, address - function.code.base, frame)
    except NotFetchable as why:
        return Variable(name, kind, spelled, None, str(why))
    problem = _refused(kind, bool(found.offsets))
    return Variable(name, kind, spelled, None if problem and not isinstance(kind, Struct) else found, problem)


def _refused(kind: BtfType, in_memory: bool) -> str:
    """Why a value of this type cannot be recorded as it is; '' if it can."""
    if isinstance(kind, Struct):
        return "is a structure: give NAME.FIELD" if in_memory else "is a structure in a register"
    if isinstance(kind, (Float, Other)):
        return "is no integer or address, and nothing else can be fetched"
    return ""


def _visible(scope: DIE, offset: int) -> Iterator[DIE]:
    """The variables of a scope and of the scopes in it that have code at an address of the file, the outermost first."""
    children = list(scope.iter_children())
    yield from (child for child in children if child.tag in _VARIABLES)
    for child in children:
        if child.tag in _SCOPES and any(start <= offset < end for start, end in ranges_of(child)):
            yield from _visible(child, offset)

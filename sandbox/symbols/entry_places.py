"""Where parameters are when a function begins, as its debug information says, and what of a signature that contradicts.

Compilers change functions that only their own file calls: clang leaves out parameters and results that nothing uses, and does not
rename the function as gcc does. gcc does not say that a function has Microsoft's calling convention.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sandbox.abi.convention import ARGUMENT_REGISTERS, ARGUMENTS, REGISTERS, STACK, Place, argument_places
from sandbox.abi.signatures import (
    Complex,
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
from sandbox.symbols.dwarf_classes import CLASSES, stripped
from sandbox.symbols.dwarf_entries import find, may_be_cxx, producer, type_die
from sandbox.symbols.exported import is_exported
from sandbox.symbols.locations import EVERYWHERE, Operands, expressions, is_constant
from sandbox.x86_64 import dwarf_registers

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_FBREG, _DEREF, _PIECE, _CALL_FRAME_CFA = 0x91, 0x06, 0x93, 0x9C
_FIRST_REGISTER, _LAST_REGISTER, _FIRST_BASED, _LAST_BASED = 0x50, 0x6F, 0x70, 0x7F
_FRAME_BASED = (0x76, 0x77)
"""Addresses relative to rbp and rsp."""
_FRAME_BASES: dict[tuple[bytes, ...], int] = {(bytes([_CALL_FRAME_CFA]),): 0, (bytes([_FIRST_REGISTER + 6]),): 16}
"""What a frame base is (the canonical frame address, rbp) -> the distance from it to the first argument on the stack."""
_CALLS_DESCRIBED = ("DW_AT_call_all_calls", "DW_AT_GNU_all_call_sites")
_CLANG_THAT_SAYS = 19
_SOURCES = {
    dwarf_registers.REGISTERS.index(name): source for name, source in zip(ARGUMENT_REGISTERS, ARGUMENTS, strict=True)
} | {number: REGISTERS + 16 * at for at, number in enumerate(dwarf_registers.VECTORS[:8])}
"""DWARF's number of a register that can hold an argument -> its offset in the image of a call."""


def as_placed(signature: Signature, function: DIE, parameters: Sequence[DIE], start: int) -> Signature:
    """The signature of a function that begins at `start` in the file, as far as the places of `parameters` confirm it."""
    places = [place for _, place in argument_places(signature)[0]]
    above = _FRAME_BASES.get(tuple(said for _, _, said in expressions(function, "DW_AT_frame_base")))
    found = list(zip(places, parameters, strict=True))
    agree = [_agrees(place, _certain(parameter, start), above) for place, parameter in found]
    may_be_changed = _may_be_changed(signature, function, start)
    signature = replace(signature, is_result_unset=may_be_changed)
    if False in agree:
        return _with_own_convention(signature, agree)
    if may_be_changed:
        kinds = [parameter.type for parameter in signature.parameters]
        given = [_is_passed(kind, *each, start, above) for kind, each in zip(kinds, found, strict=True)]
        return signature if all(given) else _of_one_file(signature, given.index(False))
    return _without_unused(signature, parameters, start) if "clang" in producer(function) else signature


def _with_own_convention(signature: Signature, agree: Sequence[bool | None]) -> Signature:
    """One whose parameters are in other places than in C: only those are known that are where they would be in C."""
    why = "debug information has parameters of the function in other places"
    pairs = zip(signature.parameters, agree, strict=True)
    parameters = tuple(each if is_there else _unknown(each, why) for each, is_there in pairs)
    kind = signature.returns
    is_scalar = isinstance(kind, (Integer, Pointer, Floating, Void))
    return replace(signature, parameters=parameters, returns=kind if is_scalar else Unsupported(str(kind), why))


def _of_one_file(signature: Signature, known: int) -> Signature:
    """One that LLVM may have changed, since it knows all callers: from parameter `known` on."""
    why = "the compiler may have left out what no caller uses"
    parameters = signature.parameters[:known] + tuple(_unknown(each, why) for each in signature.parameters[known:])
    return replace(signature, parameters=parameters)


def _without_unused(signature: Signature, parameters: Sequence[DIE], start: int) -> Signature:
    """One whose callers in its own file do not set the parameters that it does not read: those are nowhere, or constants."""
    used = [_is_used(parameter, start) for parameter in parameters]
    pairs = zip(signature.parameters, used, strict=True)
    return replace(signature, parameters=tuple(replace(each, is_unset=not is_used) for each, is_used in pairs))


def _unknown(parameter: Parameter, why: str) -> Parameter:
    kind = parameter.type
    return replace(parameter, type=kind if isinstance(kind, Unsupported) else Unsupported(str(kind), why))


def _may_be_changed(signature: Signature, function: DIE, start: int) -> bool:
    """Whether clang may have left out parameters and the result without saying so: later versions do by DW_CC_nocall.

    All callers are in one file, and it was optimized: all calls are described. After optimisation of the whole program
    this is so, too, of functions that other files could call by their source; hidden ones cannot be told from these.
    """
    is_optimized = any(each in function.attributes for each in _CALLS_DESCRIBED)
    if not (0 < signature.clang < _CLANG_THAT_SAYS and is_optimized):
        return False
    return not find(function, "DW_AT_external") or not is_exported(function, start)


def _agrees(place: Place | None, said: Iterable[bytes], above: int | None) -> bool | None:
    """Whether a parameter is where the calling convention puts it, by one of the expressions; None if they do not tell."""
    if place is None or place.indirect:
        return None
    wanted = {offset: source for offset, source, _ in place.pieces}
    answers = []
    for sources in (dict(_sources(expression, above)) for expression in said):
        answers += (
            [all(sources[offset] == wanted[offset] for offset in shared)] if (shared := sources.keys() & wanted) else []
        )
    return any(answers) if answers else None


def _sources(expression: bytes, above: int | None) -> Iterator[tuple[int, int]]:
    """(offset in the value, offset in the image) of its parts that are in a register of arguments or above the return slot.

    `above`: where the arguments on the stack begin, from the frame base; None if that is not known.
    """
    offset, operands = 0, Operands(expression)
    while operands.rest:
        code, source = operands.take(1)[0], None
        if _FIRST_REGISTER <= code <= _LAST_REGISTER:
            source = _SOURCES.get(code - _FIRST_REGISTER)
        elif code == _FBREG and above is not None:
            at = operands.sleb() - above
            source = STACK + at if at >= 0 else None
        elif code != _PIECE:
            return
        if code != _PIECE and operands.rest[:1] not in (b"", bytes([_PIECE])):
            return
        if source is not None:
            yield offset, source
        if operands.rest:
            operands.take(int(code != _PIECE))
            offset += operands.uleb()


def _at_entry(parameter: DIE, start: int) -> Iterator[bytes]:
    """The locations of a parameter where the function begins: also those of no length, which gcc has before an assignment."""
    for low, high, expression in expressions(parameter):
        if low == start or low <= start < high:
            yield expression


def _is_passed(kind: Type, place: Place | None, parameter: DIE, start: int, above: int | None) -> bool:
    """Whether a parameter is passed as its type says, in a function that LLVM may have changed.

    If all callers pass one constant, none may pass it. Structures may be passed in parts, or as what the function reads of them,
    and what debug information names is then the copy on the stack: they are where they are expected, or not known.
    """
    said = [expression for expression in _at_entry(parameter, start) if not is_constant(expression)]
    if place is None or place.indirect or not isinstance(kind, (Record, Complex)):
        return bool(said)
    wanted = {(offset, source) for offset, source, _ in place.pieces}
    return any(wanted <= set(_sources(expression, above)) for expression in said)


def _is_used(parameter: DIE, start: int) -> bool:
    at_entry = [expression for expression in _at_entry(parameter, start) if expression]
    if at_entry:
        return not all(map(is_constant, at_entry))
    return any(said for _, _, said in expressions(parameter))


def _certain(parameter: DIE, start: int) -> Iterator[bytes]:
    """Those that hold there: for a value in several registers, gcc may have where it is later for the whole function."""
    found = list(expressions(parameter))
    if not (len(found) == 1 and found[0][:2] == EVERYWHERE and _PIECE in found[0][2]):
        yield from _at_entry(parameter, start)


def located_by_reference(parameter: DIE) -> bool | None:
    """Whether a parameter's location at the function's entry is behind an address; None if debug information does not say.

    gcc says nothing about classes, but the location shows it.
    """
    kind = stripped(type_die(parameter))
    if kind is None or kind.tag not in CLASSES or not may_be_cxx(parameter):
        return None
    if find(kind, "DW_AT_calling_convention") is not None:
        return None
    expression = next((said for _, _, said in expressions(parameter)), b"")
    if not expression:
        return None
    operation, operands = expression[0], Operands(expression[1:])
    if operation == _FBREG:
        operands.sleb()
        return operands.rest[0] == _DEREF if len(operands.rest) == 1 else (False if not operands.rest else None)
    if _FIRST_BASED <= operation <= _LAST_BASED and operation not in _FRAME_BASED:
        operands.sleb()
        return True if not operands.rest else None
    return False if _FIRST_REGISTER <= operation <= _LAST_REGISTER or operation == _PIECE else None

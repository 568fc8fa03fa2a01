"""Functions with their arguments and results, as far as something tells: debug information, or the prototypes that are shipped.

The part inside a program plans from it what to record of a call; the launcher, what the record says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from fprobe.prototypes import meanings
from fprobe.prototypes.meanings import TABLE, Target
from fprobe.prototypes.prototypes import Prototype, is_known_library, prototype
from sandbox.abi import convention, layout
from sandbox.abi.convention import Place
from sandbox.abi.signatures import Integer, Parameter, Pointer, Record, Signature, Type, Void
from sandbox.symbols.dwarf import parameters_of, signature_of
from sandbox.symbols.dwarf_entries import type_die
from sandbox.symbols.dwarf_types import type_of

if TYPE_CHECKING:
    from elftools.dwarf.die import DIE

_MOST_FOLLOWED = 8
_LARGEST = 128
"""Bytes of the structures that are shown where a pointer leads to them."""
_VARIABLE = Integer(64, True)
_NAMES = {"mode": "mode", "fcntl_argument:1": "arg"}
"""Names of arguments of a variable number."""


class Argument(NamedTuple):
    """An argument, or a result. `place`: None if it cannot be read. `meaning`: a word of `meanings`, or ''.

    `record`: the structure that it points to. `target`: what is copied of what it points to.
    """

    name: str
    type: Type
    place: Place | None
    meaning: str = ""
    record: Record | None = None
    target: Target | None = None
    is_variable: bool = False

    @property
    def is_followed(self) -> bool:
        """Whether what it points to is copied."""
        return self.target is not None and self.place is not None and len(self.place.pieces) == 1


class Described(NamedTuple):
    """A function. `result`: None without one. `sets_errno`: a result of -1, or no pointer, is a failure with an errno."""

    arguments: tuple[Argument, ...]
    result: Argument | None
    is_variadic: bool
    sets_errno: bool

    def followed(self, *, at_return: bool) -> list[Argument]:
        """The arguments whose targets are copied at one end of a call, in the order of the record."""
        found = [each for each in self.arguments if each.is_followed and each.target.at_return == at_return]  # type: ignore[union-attr]
        if at_return and self.result is not None and self.result.is_followed:
            found.append(self.result)
        return found[:_MOST_FOLLOWED]

    @property
    def stack_words(self) -> int:
        """Words above the return address that hold arguments."""
        return max((each.place.stack // 8 for each in self.arguments if each.place is not None), default=0)

    def in_vectors(self, *, at_return: bool) -> bool:
        """Whether a value of that end is in a vector register."""
        values = [self.result] if at_return else self.arguments
        return any(each is not None and each.place is not None and each.place.in_vectors for each in values)


def described(names: Iterable[str], library: str, die: DIE | None) -> Described | None:
    """What is known about a function. `names`: of its symbol and the others at its address; `library`: the name of its file.

    `die`: its definition in debug information. None if neither that nor a prototype tells.
    """
    names = [name.partition("@")[0] for name in names]
    shipped = prototype(library, names)
    words = _meanings(names) if is_known_library(library) else []
    if die is not None:
        with contextlib.suppress(Exception):  # reading damaged debug information raises anything
            return _made(signature_of(names[0], die), _records(die) if shipped is None else {}, shipped, words)
    return _made(shipped.signature, {}, shipped, words) if shipped is not None else None


def _meanings(names: Iterable[str]) -> list[str]:
    return next((TABLE[name] for name in names if name in TABLE), [])


def _made(signature: Signature, records: dict[int, Record], shipped: Prototype | None, words: list[str]) -> Described:
    beyond = len(words) - len(signature.parameters) if signature.variadic else 0
    extra = tuple(Parameter(_VARIABLE) for _ in range(beyond))
    parameters = tuple(
        replace(parameter, type=Pointer()) if at < len(words) and meanings.target(words[at]) else parameter
        for at, parameter in enumerate(signature.parameters)
    )  # debug information calls the address that connect(2) takes a union
    whole = replace(signature, parameters=parameters + extra, variadic=signature.variadic and not extra)
    places, _ = convention.argument_places(whole)
    records = records | (shipped.targets if shipped else {})
    arguments = tuple(
        _argument(at, parameter, place, words[at] if at < len(words) else "", records.get(at), shipped is None)
        ._replace(is_variable=at >= len(signature.parameters))
        for at, (parameter, place) in enumerate(places)
    )  # fmt: skip
    is_variadic = signature.variadic and not extra
    return Described(arguments, _result(signature), is_variadic, shipped is not None and shipped.sets_errno)


def _argument(
    at: int, parameter: Parameter, place: Place | None, meaning: str, record: Record | None, is_own: bool
) -> Argument:
    """`is_own`: the function is of no library whose prototypes say `const` where they mean it."""
    kind = parameter.copied or parameter.type
    readable = place if place is not None and layout.is_decodable(kind) else None
    target = meanings.target(meaning) if meaning else None
    if not meaning and isinstance(kind, Pointer):
        if is_text(kind) and (is_own or kind.name.startswith("const")):
            target = Target(meanings.TEXT_LIMIT, is_text=True)
        elif record is not None:
            target = Target(layout.size_of(record))
    return Argument(parameter.name or _NAMES.get(meaning) or f"arg{at + 1}", kind, readable, meaning, record, target)


def is_text(kind: Type) -> bool:
    """Whether the source declares it as a pointer to characters."""
    return isinstance(kind, Pointer) and kind.is_text


def _result(signature: Signature) -> Argument | None:
    kind = signature.result
    if isinstance(kind, Void):
        return None
    place = convention.result_place(signature)
    known = place if place is not None and not place.indirect and layout.is_decodable(kind) else None
    target = Target(meanings.TEXT_LIMIT, is_text=True, at_return=True) if is_text(kind) else None
    return Argument("", kind, known, target=target)


def _records(function: DIE) -> dict[int, Record]:
    """The structures behind the parameters of a function, which it only reads."""
    found = {}
    for at, parameter in enumerate(parameters_of(function)):
        behind = structure_behind(parameter)
        if behind is not None and behind[1]:
            found[at] = behind[0]
    return found


def structure_behind(die: Any) -> tuple[Record, bool] | None:
    """The structure that a pointer leads to, if its values can be shown, and whether it is const."""
    pointer = stripped(type_die(die))
    target = type_die(pointer) if pointer is not None and pointer.tag == "DW_TAG_pointer_type" else None
    is_const = False
    while target is not None and target.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type"):
        is_const = is_const or target.tag == "DW_TAG_const_type"
        target = type_die(target)
    if target is None or target.tag != "DW_TAG_structure_type" or "DW_AT_declaration" in target.attributes:
        return None
    kind = type_of(pointer)
    is_shown = isinstance(kind, Record) and layout.is_decodable(kind) and 0 < layout.size_of(kind) <= _LARGEST
    return (kind, is_const) if is_shown and isinstance(kind, Record) else None


def stripped(die: Any) -> Any:
    """The type without typedefs and qualifiers."""
    while die is not None and die.tag in ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_restrict_type"):
        die = type_die(die)
    return die

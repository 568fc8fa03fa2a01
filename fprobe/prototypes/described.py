"""Functions with their arguments and results, as far as something tells: debug information, or the prototypes that are shipped.

The part inside a program plans from it what to record of a call; the launcher, what the record says.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
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
_SPACE = 32_000
"""Bytes of a record for words of the stack and what pointers lead to: a record is in one sub-buffer."""
_LARGEST = 128
"""Bytes of the structures that are shown where a pointer leads to them, or a result's address."""
_VARIABLE = Integer(64, True)
_UNTYPED = ("", "ptr", "void*")
"""Pointers whose targets the source does not declare: those of LLVM have no types."""
_NAMES = {"mode": "mode", "fcntl_argument:1": "arg"}
"""Names of arguments of a variable number."""


class Argument(NamedTuple):
    """An argument, or a result. `place`: None if it cannot be read. `meaning`: a word of `meanings`, or ''.

    `record`: the structure that it points to. `target`: what is copied of what it points to, or of what its address is passed of.
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

    @property
    def is_indirect(self) -> bool:
        """Whether its address is passed, or returned, in its place."""
        return self.place is not None and self.place.indirect

    @property
    def _space(self) -> int:
        """Bytes that the copy takes in a record."""
        return self.target.most + 24 if self.target is not None and self.is_followed else 0


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


def of_signature(signature: Signature) -> Described:
    """A function whose source gives its signature.

    Where that does not say what a pointer leads to, it may be a text. A value whose address is passed in its place is read there.
    """
    return _made(signature, {}, None, [], from_source=True)


def _meanings(names: Iterable[str]) -> list[str]:
    return next((TABLE[name] for name in names if name in TABLE), [])


def _made(
    signature: Signature,
    records: dict[int, Record],
    shipped: Prototype | None,
    words: list[str],
    *,
    from_source: bool = False,
) -> Described:
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
        _argument(at, parameter, place, words[at] if at < len(words) else "", records.get(at), shipped is None, from_source)
        ._replace(is_variable=at >= len(signature.parameters))
        for at, (parameter, place) in enumerate(places)
    )  # fmt: skip
    arguments = tuple(each if _has_length(each, arguments) else each._replace(target=None) for each in arguments)
    is_variadic = signature.variadic and not extra
    sets_errno = shipped is not None and shipped.sets_errno
    return Described(tuple(_fitting(arguments)), _result(signature, from_source), is_variadic, sets_errno)


def _has_length(argument: Argument, others: Sequence[Argument]) -> bool:
    """Whether it can be read how long what it points to is."""
    length = argument.target.length if argument.target is not None else None
    return length is None or not 0 <= length < len(others) or others[length].place is not None


def _fitting(arguments: Iterable[Argument]) -> Iterator[Argument]:
    """Arguments that a record has space for. Another one cannot be read, or what it points to is not copied."""
    stack = copied = 0
    for each in arguments:
        above = max(stack, each.place.stack if each.place is not None else 0)
        if above + copied + each._space > _SPACE:
            is_readable = above + copied <= _SPACE and not each.is_indirect
            each = each._replace(place=each.place if is_readable else None, target=None)
        stack = above if each.place is not None else stack
        copied += each._space
        yield each


def _argument(
    at: int,
    parameter: Parameter,
    place: Place | None,
    meaning: str,
    record: Record | None,
    is_own: bool,
    from_source: bool,
) -> Argument:
    """`is_own`: the function is of no library whose prototypes say `const` where they mean it.

    `from_source`: see `of_signature`.
    """
    kind = parameter.copied or parameter.type
    # The value behind an address may be incomplete in optimized code: what the callee does not read is not stored.
    is_there = place is not None and (from_source or not place.indirect)
    readable = place if is_there and layout.is_decodable(kind) else None
    target = meanings.target(meaning) if meaning else None
    if readable is not None and readable.indirect:
        target = Target(readable.size)
    elif not meaning and isinstance(kind, Pointer):
        if is_own or kind.name.startswith("const"):
            target = _text(kind, from_source)
        if target is None and record is not None:
            target = Target(layout.size_of(record))
    return Argument(parameter.name or _NAMES.get(meaning) or f"arg{at + 1}", kind, readable, meaning, record, target)


def is_text(kind: Type) -> bool:
    """Whether the source declares it as a pointer to characters."""
    return isinstance(kind, Pointer) and kind.is_text


def _text(kind: Type, from_source: bool) -> Target | None:
    """The text that a pointer leads to; None if it leads to something else. `from_source`: see `of_signature`."""
    if is_text(kind):
        return Target(meanings.TEXT_LIMIT, is_text=True)
    is_untyped = isinstance(kind, Pointer) and kind.name.replace("const", "").replace(" ", "") in _UNTYPED
    return Target(meanings.TEXT_LIMIT, is_text=True, is_certain=False) if from_source and is_untyped else None


def _result(signature: Signature, from_source: bool) -> Argument | None:
    kind = signature.result
    if isinstance(kind, Void):
        return None
    place = convention.result_place(signature)
    most = _SPACE if from_source else _LARGEST
    is_there = place is not None and (not place.indirect or place.size <= most)
    known = place if is_there and layout.is_decodable(kind) else None
    target = Target(known.size) if known is not None and known.indirect else _text(kind, from_source)
    return Argument("", kind, known, target=target and target._replace(at_return=True))


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

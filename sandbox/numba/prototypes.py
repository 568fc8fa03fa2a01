"""Prototypes of functions that Numba has compiled: what they take word by word, and what they return through memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from typing import Any

from sandbox.abi.btf import BtfType, Float, Int, Other, Pointer, Prototype, Stored, Void
from sandbox.abi.convention import ARGUMENT_REGISTERS
from sandbox.images import compiled
from sandbox.numba.description import Description, describe
from sandbox.numba.layout import Place, Word, has_members, members

_STATUS = Int(32, True)
_MEMBER = re.compile(r"\.f(?=\d+(?:\.|$))")


def prototype(function: str) -> Prototype | None:
    """What all specialisations of `function` (module and qualified name) that are compiled have in common.

    A parameter's words are parameters of their own: `n`, `a.data`, `a.shape.0`. None if nothing is compiled, or if what is has no
    signature.
    """
    addresses = {
        symbol.address
        for image in compiled.source.images()
        if image.name == "numba"
        for symbol in image.functions
        if symbol.name == function
    }
    try:
        found = [_of(describe(address)) for address in sorted(addresses)]
    except LookupError:
        return None
    return reduce(_common, found) if found else None


def _of(description: Description) -> Prototype:
    manager = description.data_models
    kinds: dict[str, BtfType] = {}
    for name, kind in description.arguments.items():
        kinds |= _leaves(manager.lookup(kind), name)
    places = [place for place in description.places if _number(place) is not None]
    stored = _leaves(manager.lookup(description.result_type), "result")
    return Prototype(
        tuple((_written(place.word.path), _type(place.word, kinds)) for place in places),
        _STATUS,
        tuple(_number(place) for place in places),
        tuple(
            Stored(_written(word.path).removeprefix("result").removeprefix("."), _type(word, stored), offset)
            for word, offset in description.result_words
        ),
    )


def _written(path: str) -> str:
    """As users write it: members of tuples have numbers, where Numba calls those of different types f0, f1, ..."""
    return _MEMBER.sub(".", path)


def _number(place: Place) -> int | None:
    """The number of the integer argument that is there; None in a vector register."""
    if place.register:
        return ARGUMENT_REGISTERS.index(place.register)
    return None if place.vector >= 0 else len(ARGUMENT_REGISTERS) + place.stack // 8 - 1


def _leaves(model: Any, path: str) -> dict[str, BtfType]:
    """The types of the scalars of a value that Numba's own types say more of than LLVM's."""
    if not has_members(model):
        kind = _of_numba(model.fe_type)
        return {path: kind} if kind is not None else {}
    found: dict[str, BtfType] = {}
    for name, member in members(model):
        found |= _leaves(member, f"{path}.{name}")
    if type(model.fe_type).__name__ == "UnicodeType":
        found[f"{path}.data"] = Pointer(lambda: Int(8, False))
    return found


def _of_numba(kind: Any) -> BtfType | None:
    names = {base.__name__ for base in type(kind).__mro__}
    if "Boolean" in names:
        return Int(8, False)
    if "Integer" in names:
        return Int(kind.bitwidth, bool(kind.signed))
    if "CPointer" in names:
        return Pointer(lambda: _of_numba(kind.dtype) or Other())
    return None


def _type(word: Word, known: dict[str, BtfType]) -> BtfType:
    if word.path in known:
        return known[word.path]
    if word.is_float:
        return Float()
    return Int(word.size, True) if word.kind.startswith("i") else Pointer(Void)


def _common(one: Prototype, other: Prototype) -> Prototype:
    """The words that are at the same place in both, with types that are fetched in the same way."""
    theirs = set(_words(other))
    both = [index for index, word in enumerate(_words(one)) if word in theirs]
    assert one.numbers is not None
    return Prototype(
        tuple(one.parameters[index] for index in both),
        one.returns,
        tuple(one.numbers[index] for index in both),
        tuple(it for it in one.stored if any(_shown(it) == _shown(that) for that in other.stored)),
    )


def _words(of: Prototype) -> Iterator[tuple[str, str, int | None]]:
    assert of.numbers is not None
    for (name, kind), number in zip(of.parameters, of.numbers, strict=True):
        yield name, _kind(kind), number


def _shown(it: Stored) -> tuple[str, str, int]:
    return it.name, _kind(it.type), it.offset


def _kind(kind: BtfType) -> str:
    return "pointer" if isinstance(kind, Pointer) else repr(kind)

"""The places of a compiled function's arguments and result: Numba's data models, flattened into words.

A function of Numba is `i32 status f(T *result, excinfo **, words...)`: an array comes as seven fields or more, each of which is a
word of its own in a register or on the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sandbox.abi.convention import ARGUMENT_REGISTERS

_VECTOR_REGISTERS = 8
_FLOATS = {"half": 16, "float": 32, "double": 64}


class Word(NamedTuple):
    """A scalar within a value. `path`: the fields that lead to it, as `a.shape.0`; `kind`: its LLVM type; `size` in bits."""

    path: str
    kind: str
    size: int

    @property
    def is_float(self) -> bool:
        """Whether vector registers hold it."""
        return self.kind in _FLOATS


class Place(NamedTuple):
    """The place of a word at a function's entry: an integer or vector register, or bytes above the stack pointer."""

    word: Word
    register: str = ""
    vector: int = -1
    stack: int = 0


def words_of(manager: Any, kind: Any, path: str) -> list[Word]:
    """The words that an argument called `path`, of the Numba type `kind`, comes as. `manager`: Numba's data model manager."""
    return list(_words(manager.lookup(kind), path))


def _words(model: Any, path: str) -> Iterator[Word]:
    for name, member in members(model):
        yield from _words(member, f"{path}.{name}")
    if not has_members(model):
        for number, scalar in enumerate(flat := _flattened(model.get_argument_type())):
            yield Word(f"{path}.{number}" if len(flat) > 1 else path, str(scalar), bits_of(str(scalar)))


def has_members(model: Any) -> bool:
    """Whether a value of the model is made of others."""
    return hasattr(model, "_fields") or hasattr(model, "_elem_model")


def members(model: Any) -> Iterator[tuple[str, Any]]:
    """The names and models of what a value is made of."""
    if hasattr(model, "_fields"):
        for name, kind in zip(model._fields, model._members, strict=True):
            yield name, model._dmm.lookup(kind)
    elif hasattr(model, "_elem_model"):
        for number in range(model._count):
            yield str(number), model._elem_model


def _flattened(kinds: Any) -> list[Any]:
    if isinstance(kinds, (tuple, list)):
        return [one for kind in kinds for one in _flattened(kind)]
    return [kinds] if kinds is not None else []


def bits_of(kind: str) -> int:
    """The size in bits of a scalar LLVM type; pointers have 64."""
    return _FLOATS.get(kind) or (int(kind[1:]) if kind[1:].isdigit() else 64)


def places(words: Sequence[Word]) -> list[Place]:
    """The places of the words after the two pointers at the function's entry, by the System V calling convention."""
    integers, vectors, stack = list(ARGUMENT_REGISTERS[2:]), list(range(_VECTOR_REGISTERS)), 8
    found = []
    for word in words:
        if word.is_float and vectors:
            found.append(Place(word, vector=vectors.pop(0)))
        elif not word.is_float and integers:
            found.append(Place(word, register=integers.pop(0)))
        else:
            found.append(Place(word, stack=stack))
            stack += 8
    return found


def offsets(model: Any, kind: Any, target_data: Any, path: str, base: int = 0) -> Iterator[tuple[Word, int]]:
    """The words of a value in memory, whose LLVM type is `kind`, each with its offset in bytes."""
    inside = list(members(model))
    if not inside:
        yield Word(path, str(kind), bits_of(str(kind))), base
        return
    for number, (name, member) in enumerate(inside):
        if hasattr(kind, "count"):  # an LLVM array
            part = kind.element
            at = number * part.get_abi_size(target_data)
        else:
            at, part = kind.get_element_offset(target_data, number), kind.elements[number]
        yield from offsets(member, part, target_data, f"{path}.{name}", base + at)

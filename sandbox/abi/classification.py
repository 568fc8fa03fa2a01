"""How values are passed, whatever registers are left: the classification of types of the System V ABI, and what LLVM does.

A way of passing a value is a tuple of groups. Each group goes into registers if enough are left for all of it, and else on the
stack. Some types have more than one way: debug information does not say everything that counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import NamedTuple

from sandbox.abi import layout
from sandbox.abi.signatures import (
    Array,
    Complex,
    Floating,
    Integer,
    Pointer,
    Record,
    Signature,
    Type,
    Unsupported,
    Void,
)

_WORD = 8
_IN_REGISTERS = 16
"""Bytes of the largest value in general registers."""
_LARGEST = 64
"""Bytes of the largest value that registers may hold."""
_VECTOR_REGISTERS = (16, 32, 64)
"""Possible sizes of vector registers: the function may have been compiled for a machine with SSE, AVX or AVX-512."""
_CLANG_WITH_WHOLE_INTEGERS = 18
"""The first version of clang that does not have half an integer of 128 bits in a register and half on the stack."""
_LANES = (8, 16, 32, 64)


class Word(NamedTuple):
    """A part of a value in a register: its offset and size in the value."""

    is_vector: bool
    offset: int
    size: int


class Group(NamedTuple):
    """What goes into registers as a whole or on the stack as a whole; without `words` on the stack.

    `slot`: bytes of stack that it takes, if more than `size`.
    """

    words: tuple[Word, ...]
    offset: int
    size: int
    alignment: int
    slot: int = 0


class Passing(NamedTuple):
    """A way of passing a value. `by_reference`: its address is passed. `elsewhere`: the result is in x87 registers."""

    groups: tuple[Group, ...]
    by_reference: bool = False
    elsewhere: bool = False

    @property
    def in_memory(self) -> bool:
        """Whether a part of it is in no register."""
        return any(not group.words for group in self.groups)


_X87_RESULT = Passing((), elsewhere=True)
REFERENCE = Passing((Group((Word(False, 0, 8),), 0, 8, 8),), by_reference=True)


class UnknownError(Exception):
    """It is not known how a value of a type is passed."""


class _Class(Enum):
    """The classes of the System V ABI, section 3.2.3."""

    NO_CLASS = auto()
    INTEGER = auto()
    SSE = auto()
    SSEUP = auto()
    X87 = auto()
    X87UP = auto()
    MEMORY = auto()


_NO, _INTEGER, _SSE, _SSEUP, _X87, _X87UP, _MEMORY = _Class
_FLOATING = {
    **dict.fromkeys(("half", "bfloat", "float", "double", "decimal32", "decimal64"), (_SSE,)),
    **dict.fromkeys(("fp128", "decimal128"), (_SSE, _SSEUP)),
    "x86_fp80": (_X87, _X87UP),
}


def passings(kind: Type, signature: Signature) -> list[Passing]:
    """The ways in which a function with this signature may take a value of type `kind`; none if that is not known."""
    return _distinct(kind, signature, for_result=False)


def returnings(kind: Type, signature: Signature) -> list[Passing]:
    """The same for its result."""
    return _distinct(kind, signature, for_result=True)


def _distinct(kind: Type, signature: Signature, *, for_result: bool) -> list[Passing]:
    try:
        ways = _of_c(kind, signature, for_result=for_result) if signature.is_c else _of_llvm(kind)
        return list(dict.fromkeys(ways))
    except (TypeError, UnknownError):
        return []


def copied(kind: Type, attributes: Iterable[str]) -> list[Passing]:
    """The ways of passing a copy of what a pointer of LLVM IR with `byval` points to."""
    given = [int(word.split()[1]) for word in attributes if word.startswith("align ")]
    try:
        alignment = max(given or [layout.alignment_of(kind)])
        return [_on_stack(layout.size_of(kind), alignment)]
    except TypeError:
        return []


def _on_stack(size: int, alignment: int) -> Passing:
    return Passing((Group((), 0, size, alignment),))


# -- C and C++ ----------------------------------------------------------------------------------------------------


def _of_c(kind: Type, signature: Signature, *, for_result: bool) -> Iterator[Passing]:
    reference = _by_reference(kind)
    if reference is not False:
        yield REFERENCE
    if reference:
        return
    if isinstance(kind, Integer) and kind.bits > 64 and 0 < signature.clang < _CLANG_WITH_WHOLE_INTEGERS:
        yield Passing(tuple(_group([Word(False, at, 8)], at, 8, 8) for at in (0, 8)))
        return
    element = kind.element if isinstance(kind, Complex) else None
    if for_result and isinstance(element, Floating) and element.kind == "x86_fp80":
        yield _X87_RESULT
        return
    if for_result and isinstance(kind, Array) and kind.count == 1 and isinstance(kind.element, Floating):
        yield Passing((_group([Word(True, 0, 8)], 0, 8, 8),))  # clang's way; gcc has it in memory
    if signature.clang and isinstance(kind, (Record, Complex)) and _is_large_or_quadruple(kind):
        yield _on_stack(layout.size_of(kind), layout.alignment_of(kind))
        if layout.size_of(kind) > _IN_REGISTERS:
            return
    for classes, alignment in itertools.product(_classifications(kind), _alignments(kind)):
        way = _by_classes(classes, layout.size_of(kind), alignment, for_result=for_result)
        yield way
        if signature.may_split and not for_result:
            for slot in (8, 16):
                yield Passing(tuple(part for group in way.groups for part in _split(group, slot)))


def _split(group: Group, slot: int) -> list[Group]:
    """The words of a group as groups of their own. `slot`: bytes of stack that one for a vector register takes."""
    slots = [(word, slot if word.is_vector else 8) for word in group.words]
    return [_group([word], word.offset, word.size, taken, taken) for word, taken in slots] or [group]


def _by_reference(kind: Type) -> bool | None:
    if isinstance(kind, Record):
        return kind.form.by_reference if kind.form else False
    return isinstance(kind, Unsupported) and kind.by_reference


def _by_classes(classes: Sequence[_Class], size: int, alignment: int, *, for_result: bool) -> Passing:
    if classes == [_X87, _X87UP] and for_result:
        return _X87_RESULT
    if (not classes and size) or _X87 in classes:
        return _on_stack(size, alignment)
    words = []
    for number, each in enumerate(classes):
        if each in (_INTEGER, _SSE):
            rest = itertools.takewhile(lambda it: it is _SSEUP, classes[number + 1 :])
            start, length = number * _WORD, _WORD * (1 + len(list(rest)))
            words.append(Word(each is _SSE, start, min(length, size - start)))
    return Passing((_group(words, 0, size, alignment),) if words else ())


def _group(words: Iterable[Word], offset: int, size: int, alignment: int, slot: int = 0) -> Group:
    return Group(tuple(words), offset, size, max(alignment, _WORD), slot)


def _classifications(kind: Type) -> Iterator[list[_Class]]:
    """The classes of each word, for each size of vector registers; empty if the value is on the stack."""
    for size in _VECTOR_REGISTERS:
        classes = _classes(kind, size)
        yield classes
        if isinstance(kind, Record) and kind.form and kind.form.has_gaps and classes:
            free = [(each, _INTEGER) if each in (_NO, _SSE) else (each,) for each in classes]
            yield from map(list, itertools.product(*free))


def _classes(kind: Type, largest: int) -> list[_Class]:
    size = layout.size_of(kind)
    if size > _LARGEST or (isinstance(kind, Record) and kind.form and kind.form.in_memory):
        return []
    words = [_NO] * -(-size // _WORD)
    if not any(True for _ in _parts(kind, 0)):
        return words[:1]  # an empty class, or some of them
    for start, bits, part in _parts(kind, 0):
        if not bits and start % (8 * layout.alignment_of(part)):
            return []
        found = [_INTEGER] * (-(-(start + bits) // 64) - start // 64) if bits else _of_scalar(part, largest)
        if not found:
            return []
        for number, each in enumerate(found, start // 64):
            words[number] = _merged(words[number], each)
    return _cleaned(words)


def _parts(kind: Type, start: int) -> Iterator[tuple[int, int, Type]]:
    """The scalars and vectors in a value: first bit, number of bits if it is a bit field or else 0, and type."""
    if isinstance(kind, Record):
        bits = kind.form.bits if kind.form else [(8 * offset, 0) for offset, _, _ in layout.fields_of(kind)]
        for (at, size), (_, field) in zip(bits, kind.fields, strict=True):
            yield from [(start + at, size, field)] if size else _parts(field, start + at)
    elif isinstance(kind, Array) and not kind.is_vector:
        step = 8 * layout.size_of(kind.element)
        for index in range(kind.count):
            yield from _parts(kind.element, start + index * step)
    elif isinstance(kind, Complex):
        step = 8 * layout.size_of(kind.element)
        yield from ((start, 0, kind.element), (start + step, 0, kind.element))
    else:
        yield start, 0, kind


def _is_large_or_quadruple(kind: Type) -> bool:
    """Whether clang has it on the stack: a large empty class, or, up to some version, a number of type __float128."""
    if layout.size_of(kind) > _LARGEST:
        return True
    parts = [part for _, _, part in _parts(kind, 0)]
    is_quadruple = any(isinstance(part, Floating) and part.kind == "fp128" for part in parts)
    return is_quadruple or (not parts and layout.size_of(kind) > _IN_REGISTERS)


def _of_scalar(kind: Type, largest: int) -> Sequence[_Class]:
    """The classes of a scalar's or vector's words; empty for memory. Raises UnknownError."""
    if isinstance(kind, Pointer) or (isinstance(kind, Integer) and kind.bits <= 64):
        return (_INTEGER,)
    if isinstance(kind, Integer) and kind.bits == 128:
        return (_INTEGER, _INTEGER)
    if isinstance(kind, Floating):
        return _FLOATING[kind.kind]
    if isinstance(kind, Array):
        return _of_vector(kind, largest)
    raise UnknownError


def _of_vector(kind: Array, largest: int) -> Sequence[_Class]:
    size = layout.size_of(kind)
    if size in (1, 2, 4) and isinstance(kind.element, Integer):
        return (_INTEGER,)
    if size < _WORD or size & (size - 1):
        raise UnknownError  # compilers differ
    if size > largest or (kind.count == 1 and isinstance(kind.element, Floating)):
        return ()
    return (_SSE,) + (_SSEUP,) * (size // _WORD - 1)


def _merged(one: _Class, other: _Class) -> _Class:
    if one is other or other is _NO:
        return one
    if one is _NO:
        return other
    if _INTEGER in (one, other):
        return _INTEGER
    return _SSE if {one, other} <= {_SSE, _SSEUP} else _MEMORY


def _cleaned(words: list[_Class]) -> list[_Class]:
    """The classes after the ABI's cleanup; empty for memory."""
    if _MEMORY in words or any(
        each is _X87UP and before is not _X87 for before, each in itertools.pairwise([_NO, *words])
    ):
        return []
    if len(words) > 2 and (words[0] is not _SSE or any(each is not _SSEUP for each in words[1:])):
        return []
    before = _NO
    for number, each in enumerate(words):
        before = words[number] = _SSE if each is _SSEUP and before not in (_SSE, _SSEUP) else each
    return words


def _alignments(kind: Type) -> list[int]:
    """Its possible alignments on the stack: debug information does not say that a structure is packed."""
    natural = layout.alignment_of(kind)
    if isinstance(kind, Record) and natural > _WORD and not kind.form and _is_dense(kind):
        return [natural, _WORD]
    return [natural]


def _is_dense(kind: Record) -> bool:
    """Whether it would have the same layout if it were packed."""
    return sum(layout.size_of(field) for _, field in kind.fields) == layout.size_of(kind)


# -- LLVM ---------------------------------------------------------------------------------------------------------


def _of_llvm(kind: Type) -> Iterator[Passing]:
    """Every scalar and vector in a value is passed like an argument of its own."""
    for largest in _VECTOR_REGISTERS:
        if isinstance(kind, Integer) and kind.bits == 128:
            words = [Word(False, at, 8) for at in (0, 8)]
            yield Passing((_group(words, 0, 16, 16),))
            continue
        groups = [group for start, _, part in _parts(kind, 0) for group in _llvm_groups(part, start // 8, largest)]
        yield Passing(tuple(groups))


def _llvm_groups(kind: Type, at: int, largest: int) -> Iterator[Group]:
    size = layout.size_of(kind)
    if isinstance(kind, Array):
        yield from _llvm_vector(kind, at, largest)
    elif isinstance(kind, Floating):
        words = [Word(True, at, size)] if _FLOATING[kind.kind][0] is _SSE else []
        yield _group(words, at, size, size)
    elif isinstance(kind, (Integer, Pointer)):
        words = [Word(False, at + low, min(_WORD, size - low)) for low in range(0, size, _WORD)]
        yield from (_group([word], word.offset, word.size, _WORD) for word in words)
    elif not isinstance(kind, Void):
        raise UnknownError


def _llvm_vector(kind: Array, at: int, largest: int) -> Iterator[Group]:
    bits = layout.size_of(kind.element) * 8
    if kind.count == 1:
        yield from _llvm_groups(kind.element, at, largest)
        return
    if bits not in _LANES or (kind.count & (kind.count - 1) and bits < 32):
        raise UnknownError
    size = layout.size_of(kind)  # as stored, and with the lanes that LLVM adds
    part = min(max(size, 16), largest)
    for low in range(0, size, part):
        visible = min(part, size - low)
        yield _group([Word(True, at + low, visible)], at + low, visible, part, part)

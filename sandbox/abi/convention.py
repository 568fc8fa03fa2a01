"""The calling convention: the places of a call's arguments and result. Signatures in, offsets out.

Offsets are into an *image* of the call: the kernel's pt_regs at entry or return, then the low 8 bytes of the vector registers
xmm0 to xmm7, then the words above the return slot. The rest of the vector registers is not visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sandbox.abi import layout
from sandbox.abi.signatures import Array, Floating, Integer, Parameter, Pointer, Record, Signature, Type, Void

_WORDS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax",
    "ip", "cs", "flags", "sp", "ss",
)  # fmt: skip
ARGUMENT_REGISTERS = ("di", "si", "dx", "cx", "r8", "r9")
"""The registers of the first integer arguments."""
ARGUMENTS = [_WORDS.index(name) * 8 for name in ARGUMENT_REGISTERS]
RESULTS = [_WORDS.index(name) * 8 for name in ("ax", "dx", "cx")]
"""The fields of an image that hold integer arguments, and those that hold the words of a result."""
_VECTOR_ARGUMENTS, _VECTOR_RESULTS = 8, 2
REGISTERS = len(_WORDS) * 8
"""Bytes of pt_regs; the vector registers come at this offset."""
VECTORS = _VECTOR_ARGUMENTS * 8
STACK = REGISTERS + VECTORS
"""The position of the stack's words in an image."""
STACK_POINTER = _WORDS.index("sp") * 8


@dataclass(frozen=True)
class Place:
    """A value in an image: pieces of (offset in the value, offset in the image, bytes).

    `indirect`: the pieces hold its address instead.
    """

    pieces: tuple[tuple[int, int, int], ...]
    size: int
    indirect: bool = False

    @property
    def in_vectors(self) -> bool:
        """Whether a part of it is in a vector register."""
        return any(REGISTERS <= source < STACK for _, source, _ in self.pieces)

    def gather(self, image: bytes) -> bytes:
        """The bytes of the value (or of its address)."""
        if len(self.pieces) == 1:
            _, source, size = self.pieces[0]
            return image[source : source + size]
        value = bytearray(self.size)
        for target, source, size in self.pieces:
            value[target : target + size] = image[source : source + size]
        return bytes(value)


class _Unreadable(Exception):
    """A value that an image does not hold."""


def _narrow(offset: int, size: int) -> int:
    if size > 8:
        raise _Unreadable
    return offset


class _Arguments:
    """Hands out registers and stack words in the order of the parameters."""

    def __init__(self) -> None:
        self.integers = list(ARGUMENTS)
        self.vectors = [REGISTERS + 8 * number for number in range(_VECTOR_ARGUMENTS)]
        self.stack = 0

    def integer(self) -> int:
        """The place of the next integer."""
        return self.integers.pop(0) if self.integers else self.on_stack(8)

    def vector(self, size: int) -> int:
        """The place of the next floating-point value or vector. Raises _Unreadable if an image holds only a part of it."""
        if not self.vectors:
            return self.on_stack(size)
        return _narrow(self.vectors.pop(0), size)

    def on_stack(self, size: int) -> int:
        """The place of the next value of `size` bytes on the stack."""
        alignment = 16 if size >= 16 else 8
        start = (self.stack + alignment - 1) & -alignment
        self.stack = (start + size + 7) & -8
        return STACK + start


class _Results:
    """The same for results."""

    def __init__(self) -> None:
        self.integers = list(RESULTS)
        self.vectors = [REGISTERS + 8 * number for number in range(_VECTOR_RESULTS)]

    def integer(self) -> int:
        return self.integers.pop(0)

    def vector(self, size: int) -> int:
        return _narrow(self.vectors.pop(0), size)

    def on_stack(self, size: int) -> int:
        raise _Unreadable  # the x87 stack


def argument_places(signature: Signature) -> tuple[list[tuple[Parameter, Place | None]], int]:
    """(parameter, its place or None) for a caller's arguments, and the bytes of stack that they occupy."""
    free = _Arguments()
    if _result_in_memory(signature):
        free.integer()
    places = [(parameter, _argument(parameter, signature, free)) for parameter in signature.parameters]
    return [(parameter, place) for parameter, place in places if parameter.returned is None], free.stack


def _argument(parameter: Parameter, signature: Signature, free: _Arguments) -> Place | None:
    if parameter.copied is not None:
        size = layout.size_of(parameter.copied)
        return Place(((0, free.on_stack(size), size),), size)
    if signature.is_c and isinstance(parameter.type, Record):
        return _c_record(parameter.type, free)
    return _place(parameter.type, free)


def _place(kind: Type, free: _Arguments | _Results) -> Place | None:
    """A value whose every part travels like an argument of its own."""
    pieces: list[tuple[int, int, int]] = []
    readable = True
    try:
        size = layout.size_of(kind)
        parts = list(_parts(kind, 0))
    except TypeError:
        return None
    for offset, part in parts:
        try:
            pieces += _scalar(part, offset, free)
        except (_Unreadable, IndexError):
            readable = False
    return Place(tuple(pieces), size) if readable and pieces else None


def _parts(kind: Type, offset: int) -> Iterator[tuple[int, Type]]:
    """The scalars and vectors in a value, with their offsets."""
    if isinstance(kind, Record):
        for start, _, field in layout.fields_of(kind):
            yield from _parts(field, offset + start)
    elif isinstance(kind, Array) and not kind.is_vector:
        for index in range(kind.count):
            yield from _parts(kind.element, offset + index * layout.size_of(kind.element))
    else:
        yield offset, kind


def _scalar(kind: Type, offset: int, free: _Arguments | _Results) -> list[tuple[int, int, int]]:
    size = layout.size_of(kind)
    if isinstance(kind, (Integer, Pointer)):
        return [(offset + at, free.integer(), min(8, size - at)) for at in range(0, size, 8)]
    if isinstance(kind, Floating) and kind.kind == "x86_fp80":
        return [(offset, free.on_stack(16), 16)]
    return [(offset, free.vector(size), size)]


def _c_record(kind: Record, free: _Arguments) -> Place | None:
    """A C struct: in registers if it has at most two words and both find one, else on the stack as a whole."""
    try:
        size, words = layout.size_of(kind), _words(kind)
    except TypeError:
        return None
    integers = words.count(False) if words else 0
    if not words or integers > len(free.integers) or len(words) - integers > len(free.vectors):
        return Place(((0, free.on_stack(size), size),), size)
    return _by_words(words, size, free)


def _by_words(words: list[bool], size: int, free: _Arguments | _Results) -> Place | None:
    pieces, readable = [], True
    for number, floating in enumerate(words):
        try:
            source = free.vector(8) if floating else free.integer()
            pieces.append((number * 8, source, min(8, size - number * 8)))
        except _Unreadable:
            readable = False
    return Place(tuple(pieces), size) if readable else None


def _words(kind: Record) -> list[bool]:
    """For each word of a C struct of at most two whether it has only floating-point values; empty if it is larger."""
    size = layout.size_of(kind)
    if not 0 < size <= 16:
        return []
    floating = [True] * ((size + 7) // 8)
    for offset, part in _parts(kind, 0):
        floating[offset // 8] &= isinstance(part, Floating)
    return floating


def _result_in_memory(signature: Signature) -> bool:
    """Whether the caller passes, unseen in the signature, an address for the result."""
    kind = signature.returns
    if not isinstance(kind, (Record, Array)):
        return False
    try:
        if signature.is_c:
            return isinstance(kind, Record) and not _words(kind)
        return sum(isinstance(part, (Integer, Pointer)) for _, part in _parts(kind, 0)) > len(RESULTS)
    except TypeError:
        return False


def result_place(signature: Signature) -> Place | None:
    """The place of the result at return; None if there is no result, or an image does not hold it."""
    kind = signature.result
    if isinstance(kind, Void):
        return None
    if kind is not signature.returns or _result_in_memory(signature):
        return Place(((0, RESULTS[0], 8),), layout.size_of(kind), indirect=True)
    if signature.is_c and isinstance(kind, Record):
        return _by_words(_words(kind), layout.size_of(kind), _Results())
    return _place(kind, _Results())

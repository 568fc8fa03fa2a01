"""The calling convention: the places of a call's arguments and result. Signatures in, offsets out.

Offsets are into an *image* of the call: the kernel's pt_regs at entry or return, then the vector registers xmm0 to xmm7, then the
words above the return slot. What ymm and zmm registers have above them is not visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sandbox.abi import classification, layout
from sandbox.abi.classification import Group, Passing, Word
from sandbox.abi.signatures import Parameter, Signature, Type, Unsupported, Void

_WORDS = (
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di", "orig_ax",
    "ip", "cs", "flags", "sp", "ss",
)  # fmt: skip
ARGUMENT_REGISTERS = ("di", "si", "dx", "cx", "r8", "r9")
"""The registers of the first integer arguments."""
ARGUMENTS = [_WORDS.index(name) * 8 for name in ARGUMENT_REGISTERS]
RESULTS = [_WORDS.index(name) * 8 for name in ("ax", "dx", "cx")]
"""The fields of an image that hold integer arguments, and those that hold the words of a result."""
_VECTOR_ARGUMENTS, _VECTOR_RESULTS, _X87_RESULTS = 8, 2, 2
REGISTERS = len(_WORDS) * 8
"""Bytes of pt_regs; the vector registers come at this offset."""
_VECTOR = 16
VECTORS = _VECTOR_ARGUMENTS * _VECTOR
_VECTORS = [REGISTERS + _VECTOR * number for number in range(_VECTOR_ARGUMENTS)]
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

    @property
    def stack(self) -> int:
        """Bytes of stack above the return address that hold it."""
        return max((source + size - STACK + 7 & -8 for _, source, size in self.pieces if source >= STACK), default=0)

    def __str__(self) -> str:
        """As probe events write it: `%di`, `%xmm0 %xmm1`, `$stack1` (the first word above the return address), `+0(%di)`."""
        words = " ".join(_written(source) for _, source, _ in self.pieces)
        return f"+0({words})" if self.indirect else words or "nothing"

    def gather(self, image: bytes) -> bytes:
        """The bytes of the value (or of its address)."""
        if self.indirect:
            _, source, size = self.pieces[0]
            return image[source : source + size]
        value = bytearray(self.size)
        for target, source, size in self.pieces:
            value[target : target + size] = image[source : source + size]
        return bytes(value)


def _written(source: int) -> str:
    if source >= STACK:
        return f"$stack{(source - STACK) // 8 + 1}"
    return f"%xmm{(source - REGISTERS) // _VECTOR}" if source >= REGISTERS else f"%{_WORDS[source // 8]}"


class _State(NamedTuple):
    """Registers taken and bytes of stack taken by the arguments so far."""

    integers: int = 0
    vectors: int = 0
    stack: int = 0


_MOST_STATES = 64
_C_CONVENTIONS = frozenset(
    {"", "ccc", "fastcc", "coldcc", "tailcc", "preserve_mostcc", "preserve_allcc", "cxx_fast_tlscc"}
)
"""Calling conventions of LLVM IR that pass arguments as C does."""
_ASIDE = frozenset({"nest", "swiftself", "swifterror", "swiftasync"})
"""Attributes of parameters in registers of their own."""


def argument_places(signature: Signature) -> tuple[list[tuple[Parameter, Place | None]], int]:
    """(parameter, its place or None) for a caller's arguments, and the bytes of stack that hold those with a place.

    A place is None if it is not known, if an image does not hold the value, or if nothing may be there. Where it is not known how
    a value is passed, later ones have a place if it is the same in every case.
    """
    states = {_State(integers=int(hidden)) for hidden in _hidden_addresses(signature)}
    places: list[tuple[Parameter, Place | None]] = []
    for parameter in signature.parameters:
        if _ASIDE.isdisjoint(word.partition("(")[0] for word in parameter.attributes):
            ways = _ways(parameter, signature)
            found = [_passed(way, state, parameter) for way in ways for state in states]
            states = {state for _, state in found}
            states = states if len(states) <= _MOST_STATES else set()
            place = _same(place for place, _ in found)
        else:
            place = None
        if parameter.returned is None:
            is_there = place is not None and not (parameter.is_unset and place.pieces)
            places.append((parameter, place if is_there else None))
    return places, max((place.stack for _, place in places if place is not None), default=0)


def argument_words(signature: Signature) -> frozenset[int] | None:
    """The integer arguments, numbered from 0 (registers, then words of the stack), that hold a parameter or a part of one.

    None if that is not known: of a function with a variable number of them, or where a parameter has no place.
    """
    hidden = _hidden_addresses(signature)
    places = [place for _, place in argument_places(signature)[0]]
    if signature.variadic or None in places or len(hidden) > 1:
        return None
    found = {0} if True in hidden else set()
    for _, source, size in (piece for place in places if place is not None for piece in place.pieces):
        if source in ARGUMENTS:
            found.add(ARGUMENTS.index(source))
        elif source >= STACK:
            first = len(ARGUMENTS) + (source - STACK) // 8
            found.update(range(first, first + (size + 7) // 8))
    return frozenset(found)


def _same(places: Iterable[Place | None]) -> Place | None:
    """What all of these are; None if they differ."""
    distinct = set(places)
    return distinct.pop() if len(distinct) == 1 else None


def _ways(parameter: Parameter, signature: Signature) -> list[Passing]:
    if signature.convention not in _C_CONVENTIONS:
        return []
    if parameter.copied is not None:
        return classification.copied(parameter.copied, parameter.attributes)
    return classification.passings(parameter.type, signature)


def _passed(way: Passing, state: _State, parameter: Parameter) -> tuple[Place | None, _State]:
    """The place of an argument, and the state after it."""
    pieces: list[tuple[int, int, int] | None] = []
    for group in way.groups:
        found, state = _taken(group, state)
        pieces += found
    if None in pieces:
        return None, state
    return Place(tuple(filter(None, pieces)), _size(parameter.copied or parameter.type), way.by_reference), state


def _size(kind: Type) -> int:
    """0 if it is not known: the type is known to be passed by reference, but not its layout."""
    return layout.size_of(kind) if not isinstance(kind, Unsupported) else 0


def _taken(group: Group, state: _State) -> tuple[list[tuple[int, int, int] | None], _State]:
    """The pieces of a group, None for one that an image does not hold, and the state after it."""
    vectors = sum(word.is_vector for word in group.words)
    integers = len(group.words) - vectors
    after = state._replace(integers=state.integers + integers, vectors=state.vectors + vectors)
    if not group.words or after.integers > len(ARGUMENTS) or after.vectors > _VECTOR_ARGUMENTS:
        start = state.stack + group.alignment - 1 & -group.alignment
        piece = group.offset, STACK + start, group.size
        return [piece], state._replace(stack=start + max(group.size, group.slot) + 7 & -8)
    return _in_registers(group.words, ARGUMENTS[state.integers :], _VECTORS[state.vectors :]), after


def _in_registers(words: Iterable[Word], integers: list[int], vectors: list[int]) -> list[tuple[int, int, int] | None]:
    left = {False: iter(integers), True: iter(vectors)}
    pieces: list[tuple[int, int, int] | None] = []
    for word in words:
        source = next(left[word.is_vector])
        pieces.append((word.offset, source, word.size) if word.size <= (_VECTOR if word.is_vector else 8) else None)
    return pieces


# -- results ------------------------------------------------------------------------------------------------------


def result_place(signature: Signature) -> Place | None:
    """The place of the result at return.

    None if there is no result, if its place is not known, an image does not hold it, or nothing may be there.
    """
    kind = signature.result
    if isinstance(kind, Void) or signature.is_result_unset or signature.convention not in _C_CONVENTIONS:
        return None
    if kind is not signature.returns:
        return Place(((0, RESULTS[0], 8),), _size(kind), indirect=True)
    return _same(_returned(way, signature) for way in classification.returnings(kind, signature))


def result_in_ax(signature: Signature) -> bool | None:
    """Whether ax holds the result, a part of it, or its address; None if that is not known."""
    kind = signature.result
    if isinstance(kind, Void):
        return False
    if signature.is_result_unset:
        return None
    if kind is not signature.returns:
        return True
    known = signature.convention in _C_CONVENTIONS
    answers = {_is_in_ax(way, signature) for way in classification.returnings(kind, signature)} if known else set()
    return answers.pop() if len(answers) == 1 else None


def _is_in_ax(way: Passing, signature: Signature) -> bool | None:
    is_hidden = _is_hidden(way, signature)
    return is_hidden or (
        any(not word.is_vector for group in way.groups for word in group.words) if is_hidden is False else None
    )


def _hidden_addresses(signature: Signature) -> set[bool]:
    """Whether the caller passes, unseen in the signature, an address for the result; both if that is not known."""
    kind = signature.returns
    if isinstance(kind, Void):
        return {False}
    ways = classification.returnings(kind, signature)
    answers = {_is_hidden(way, signature) for way in ways}
    return {False, True} if not answers or None in answers else {bool(answer) for answer in answers}


def _is_hidden(way: Passing, signature: Signature) -> bool | None:
    """Whether the result is in memory; None if that is not known."""
    if signature.is_c:
        return way.by_reference or way.in_memory
    numbers = sum(not group.words for group in way.groups)
    words = [word.is_vector for group in way.groups for word in group.words]
    if words.count(False) > len(RESULTS) or numbers > _X87_RESULTS:
        return True
    return False if words.count(True) <= _VECTOR_RESULTS else None


def _returned(way: Passing, signature: Signature) -> Place | None:
    is_hidden, size = _is_hidden(way, signature), _size(signature.returns)
    if is_hidden:
        return Place(((0, RESULTS[0], 8),), size, indirect=True)
    if is_hidden is None or way.elsewhere or any(not group.words for group in way.groups):
        return None
    words = tuple(word for group in way.groups for word in group.words)
    pieces = _in_registers(words, RESULTS, _VECTORS)
    return Place(tuple(filter(None, pieces)), size) if None not in pieces else None

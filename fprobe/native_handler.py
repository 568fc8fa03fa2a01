"""Handlers written in the native language: compiled, checked against the handler's signature, linked, kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fprobe.handlers import PARAMETERS
from ftrace.handlers import native_link
from ftrace.handlers.kinds import Resolved
from sandbox.loading.native_image import NativeImage
from sandbox.native import NativeFunction, i32, void
from sandbox.native.handler import HandlerFunction
from sandbox.native.types import Int, Pointer, Type

REGS = 3

_code: native_link.Once[Resolved] = native_link.Once()


def compiled(handler: NativeFunction, is_exit: bool) -> Resolved:
    """The code of a native handler, linked; the same handler in the same role is compiled once.

    Raises TypeError if its signature is not a handler's, NativeError if it is not in the language.
    """
    return _code.get(handler, is_exit, lambda: _compile(handler, is_exit))


def _compile(handler: NativeFunction, is_exit: bool) -> Resolved:
    role = "exit" if is_exit else "entry"
    if isinstance(handler, HandlerFunction):
        handler = handler.returning(void if is_exit else i32)
    _check(handler, is_exit)
    code = native_link.HandlerCode(handler, role)
    image = native_link.link(f"{role}:{handler.name}", code.verified_object())
    plain = handler.options.cc == "preserve_most"
    return Resolved(image.address(handler.name), plain=plain, registers=code.registers(REGS), keep=image)


class Mishaps(NamedTuple):
    """What went wrong in a native handler without harm."""

    zero_divisions: int
    """Divisions by zero, which gave 0."""
    bad_indices: int
    """Indices outside of arrays of known length, which became 0."""


def native_mishaps(handler: Any) -> Mishaps:
    """The mishaps of a handler in all its roles since it was first registered. Raises TypeError for another object."""
    if not isinstance(handler, NativeFunction):
        raise TypeError(f"not a native handler: {handler!r}")
    images = [code.keep for code in _code.all(handler)]
    return Mishaps(*(sum(_count(image, f"native.{name}") for image in images) for name in Mishaps._fields))


def _count(image: NativeImage, symbol: str) -> int:
    """A counter, which only code that may need it has."""
    try:
        return image.variable(symbol).value
    except LookupError:
        return 0


def _check(handler: NativeFunction, is_exit: bool) -> None:
    signature = handler.signature
    _check_parameters(handler.name, signature.parameters)
    wanted: Type = void if is_exit else i32
    if signature.result != wanted:
        role = "an exit handler" if is_exit else "an entry handler"
        raise TypeError(f"{handler.name} returns {signature.result}; {role} returns {wanted}")


def _check_parameters(name: str, types: Sequence[Type]) -> None:
    if len(types) != len(PARAMETERS):
        given = ", ".join(map(str, types))
        raise TypeError(f"{name} takes {len(types)} parameters ({given}); a handler takes ({', '.join(PARAMETERS)})")
    for meaning, type_ in zip(PARAMETERS, types, strict=True):
        is_word = isinstance(type_, Int) and type_.bits == 64
        if not (is_word or (isinstance(type_, Pointer) and not meaning.endswith("ip"))):
            wanted = "u64" if meaning.endswith("ip") else "u64 or a pointer"
            raise TypeError(f"{name} takes its {meaning} as {type_}; it is {wanted}")

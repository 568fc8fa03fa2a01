"""Handlers written in the native language: checked against their role, compiled, linked and cached."""

from __future__ import annotations

from typing import Any, NamedTuple

from ftrace.core.handlers.kinds import BoundHandler, HandlerRole, check_native
from ftrace.core.handlers.native_link import HandlerCode, Once, link
from sandbox.native import NativeFunction
from sandbox.native.handler import HandlerFunction
from sandbox.native.native_image import NativeImage
from sandbox.process.gil import short_switch_interval

_resolved: Once[BoundHandler] = Once()


def linked(handler: NativeFunction, role: HandlerRole) -> BoundHandler:
    """The code of a native handler; the same handler in the same role is compiled once.

    Raises TypeError if its signature is not the role's, NativeError if it is not in the language.
    """
    return _resolved.get(handler, role, lambda: _link(handler, role))


@short_switch_interval()
def _link(handler: NativeFunction, role: HandlerRole) -> BoundHandler:
    if isinstance(handler, HandlerFunction):
        handler = handler.returning(role.result)
    check_native(handler, role)
    code = HandlerCode(handler, role.name)
    image = link(f"{role.name}:{handler.name}", code.verified_object())
    return BoundHandler(
        image.address(handler.name),
        plain=handler.options.cc == "preserve_most",
        registers=code.registers(role.regs),
        keep=image,
        name=handler.name,
        code=code,
    )


class Mishaps(NamedTuple):
    """Counts of harmless errors in a native handler."""

    zero_divisions: int
    """Divisions by zero, which gave 0."""
    bad_indices: int
    """Indices outside of arrays of known length, which became 0."""


def native_mishaps(handler: Any) -> Mishaps:
    """The mishaps of a handler in all its roles since it was first registered. Raises TypeError for another object."""
    if not isinstance(handler, NativeFunction):
        raise TypeError(
            f"{handler!r} is not a native handler; decorate the function with @fprobe.native or @kprobes.native"
        )
    images = [resolved.keep for resolved in _resolved.all(handler)]
    return Mishaps(*(sum(_count(image, f"native.{name}") for image in images) for name in Mishaps._fields))


def _count(image: NativeImage, symbol: str) -> int:
    """The value of a counter, which only code that may need it has."""
    try:
        return image.variable(symbol).value
    except LookupError:
        return 0

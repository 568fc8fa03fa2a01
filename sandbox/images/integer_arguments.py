"""Numbering a function's integer arguments, by the System V calling convention.

The first six integers and pointers are in registers, later ones on the stack; floating-point numbers are counted separately, and
large structures are on the stack.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.abi.convention import ARGUMENT_REGISTERS
from sandbox.images.btf import BtfType, Enum, Float, Int, Pointer, Prototype, Struct

_FLOAT_REGISTERS = 8
_LARGE = 16
"""Bytes of the largest structure that may be passed in registers."""


def integer_argument(prototype: Prototype, parameter: int) -> int | None:
    """The number, from 0, of parameter number `parameter` among the integer arguments.

    None if it is not an integer or pointer, or if its place depends on earlier parameters of unknown size.
    """
    if prototype.numbers is not None:
        return prototype.numbers[parameter]
    kinds = [kind for _, kind in prototype.parameters[: parameter + 1]]
    if not _is_integer(kinds.pop()):
        return None
    index = int(_is_large(prototype.returns))  # the address of the memory for the result
    for kind in kinds:
        if _is_integer(kind):
            index += 1
        elif not isinstance(kind, Float) and not _is_large(kind):
            return None
    return index if index < len(ARGUMENT_REGISTERS) or _stack_has_only_integers(kinds) else None


def _is_integer(kind: BtfType) -> bool:
    return isinstance(kind, Pointer) or (isinstance(kind, (Int, Enum)) and kind.bits <= 64)


def _is_large(kind: BtfType) -> bool:
    return isinstance(kind, Struct) and kind.size > _LARGE


def _stack_has_only_integers(kinds: Sequence[BtfType]) -> bool:
    floats = sum(isinstance(kind, Float) for kind in kinds)
    return floats <= _FLOAT_REGISTERS and not any(map(_is_large, kinds))

"""Functions of a generated program as their callers see them, and calls of them."""

from __future__ import annotations

from dataclasses import dataclass

from sandbox.generate.body import Body
from sandbox.generate.conversions import from_i64, operand
from sandbox.generate.types import BIG, BIG_FIELDS

MEMORY = "memory"
"""Stands for a struct in memory: `byval` as a parameter, `sret` as the result."""

_POINTER = {"byval": f"ptr byval({BIG}) align 16", "sret": f"ptr sret({BIG}) align 16"}


@dataclass(frozen=True)
class Shape:
    """What a call depends on: functions of one shape can stand in one table and tail-call each other."""

    result: str
    parameters: tuple[str, ...]
    convention: str = ""
    variable: tuple[str, ...] = ()
    """The types of the variable arguments that each call passes and the function reads."""

    @property
    def in_registers(self) -> bool:
        """No struct in memory, no variable arguments: what may be tail-called."""
        return MEMORY not in (self.result, *self.parameters) and not self.variable

    @property
    def returns(self) -> str:
        """The result type as LLVM sees it, behind the calling convention."""
        return f"{self.convention} {'void' if self.result == MEMORY else self.result}".lstrip()

    def declared(self) -> str:
        """The list of parameters of the definition: %p0, %p1, ..., and %result."""
        named = [f"{_POINTER['byval'] if kind == MEMORY else kind} %p{i}" for i, kind in enumerate(self.parameters)]
        room = [f"{_POINTER['sret']} %result"] if self.result == MEMORY else []
        return ", ".join([*room, *named, *(["..."] if self.variable else [])])


@dataclass(frozen=True)
class Function:
    """A function that may be called. `cost` is the most calls that one call of it leads to, itself included."""

    name: str
    shape: Shape
    cost: int


def call(body: Body, target: str, shape: Shape) -> str:
    """Call `target` (`@name` or a function pointer) with values in scope; keeps and returns what it returns."""
    arguments = [_argument(body, kind) for kind in shape.parameters]
    arguments += [f"{kind} {operand(body, kind)}" for kind in shape.variable]
    returns = f"{shape.returns} ({', '.join(shape.parameters)}, ...)" if shape.variable else shape.returns
    if shape.result == MEMORY:
        room = body.allocate(BIG)
        given = ", ".join([f"{_POINTER['sret']} {room}", *arguments])
        body.line(f"call {returns} {target}({given})")
        return load_fields(body, room)
    return body.new(shape.result, f"call {returns} {target}({', '.join(arguments)})")


def _argument(body: Body, kind: str) -> str:
    if kind != MEMORY:
        return f"{kind} {operand(body, kind)}"
    room = body.allocate(BIG)
    store_fields(body, room, operand(body, "i64"))
    return f"{_POINTER['byval']} {room}"


def store_fields(body: Body, room: str, value: str) -> None:
    """Fill a struct in memory from an i64."""
    for i, kind in enumerate(BIG_FIELDS):
        value = body.emit(f"mul i64 {value}, 6364136223846793005")
        field = body.emit(f"getelementptr {BIG}, ptr {room}, i32 0, i32 {i}")
        body.line(f"store {kind} {from_i64(body, value, kind)}, ptr {field}")


def load_fields(body: Body, room: str) -> str:
    """Keep every field of a struct in memory; the last is returned, an i64."""
    last = ""
    for i, kind in enumerate(BIG_FIELDS):
        field = body.emit(f"getelementptr {BIG}, ptr {room}, i32 0, i32 {i}")
        last = body.new(kind, f"load {kind}, ptr {field}")
    return last

"""The typed tree: what the front end produces and the back ends read. Nothing here knows Python or LLVM.

An *expression* has a value of a scalar type. A *place* is memory with a type: it can be loaded from, stored
to, and its address taken. Every node knows the line and column that it came from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from .declarations import Extern, GlobalVariable
from .errors import At
from .structs import Struct
from .types import Bool, Function, Type


class Callee:
    """A function of the language as its callers see it: the front end gives it a name and a signature."""

    @property
    def name(self) -> str:
        """What the source calls it."""
        raise NotImplementedError

    @property
    def signature(self) -> Function:
        """Its type."""
        raise NotImplementedError

    @property
    def cc(self) -> str:
        """Its calling convention."""
        raise NotImplementedError


@dataclass(frozen=True)
class Expression:
    at: At
    type: Type


@dataclass(frozen=True)
class Constant(Expression):
    """An integer or bool. `complement` marks a literal written with ~, which may wrap to its context."""

    value: int
    complement: bool = False


@dataclass(frozen=True)
class NullPointer(Expression):
    pass


@dataclass(frozen=True)
class Load(Expression):
    place: Place


@dataclass(frozen=True)
class AddressOf(Expression):
    place: Place


@dataclass(frozen=True)
class Unary(Expression):
    """`-`, `~` or `not`."""

    operator: str
    operand: Expression


@dataclass(frozen=True)
class Binary(Expression):
    """`+ - * // % & | ^ << >>` on operands of one type (shifts: the count has an unsigned type of its own)."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Compare(Expression):
    """`== != < <= > >=` on operands of one type."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Logic(Expression):
    """`and` / `or` with short circuit."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Conditional(Expression):
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(frozen=True)
class Extreme(Expression):
    """`min(left, right)` or `max(left, right)`."""

    name: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Cast(Expression):
    operand: Expression


@dataclass(frozen=True)
class FunctionAddress(Expression):
    target: Callee | Extern


@dataclass(frozen=True)
class Call(Expression):
    target: Callee | Extern | Expression
    arguments: tuple[Expression, ...]


@dataclass(frozen=True)
class IntrinsicCall(Expression):
    """An operation of the machine: `options` are its constant arguments (memory order, names)."""

    name: str
    arguments: tuple[Expression, ...]
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    at: At
    type: Type


@dataclass(frozen=True)
class LocalPlace(Place):
    name: str


@dataclass(frozen=True)
class GlobalPlace(Place):
    """A variable of the unit or an external one; `name` is what the source calls it."""

    name: str
    variable: GlobalVariable | Extern


@dataclass(frozen=True)
class Dereference(Place):
    pointer: Expression


@dataclass(frozen=True)
class FieldPlace(Place):
    base: Place
    struct: Struct
    field: str


@dataclass(frozen=True)
class ElementPlace(Place):
    """Element `index` of an array place."""

    base: Place
    index: Expression


@dataclass(frozen=True)
class OffsetPlace(Place):
    """`pointer[index]`: the place `index` elements after where `pointer` points."""

    pointer: Expression
    index: Expression


@dataclass(frozen=True)
class Statement:
    at: At


@dataclass(frozen=True)
class Assign(Statement):
    place: Place
    value: Expression


@dataclass(frozen=True)
class Update(Statement):
    """`place operator= value`: the place is evaluated once."""

    place: Place
    operator: str
    value: Expression


@dataclass(frozen=True)
class Zero(Statement):
    """A local array or struct comes into being, all zero."""

    place: LocalPlace


@dataclass(frozen=True)
class Evaluate(Statement):
    value: Expression


@dataclass(frozen=True)
class Return(Statement):
    value: Expression | None


@dataclass(frozen=True)
class If(Statement):
    condition: Expression
    then: Sequence[Statement]
    otherwise: Sequence[Statement]


@dataclass(frozen=True)
class While(Statement):
    condition: Expression
    body: Sequence[Statement]


@dataclass(frozen=True)
class ForRange(Statement):
    """`for variable in range(start, stop, step)` with Python's meaning; `step` is a constant."""

    variable: LocalPlace
    start: Expression
    stop: Expression
    step: int
    body: Sequence[Statement]


@dataclass(frozen=True)
class Break(Statement):
    pass


@dataclass(frozen=True)
class Continue(Statement):
    pass


@dataclass(frozen=True)
class TypedFunction:
    """A checked function. `locals` maps every local, parameters first, to its type."""

    name: str
    signature: Function
    parameters: tuple[str, ...]
    locals: dict[str, Type]
    body: Sequence[Statement]
    at: At
    filename: str


BOOL = Bool()


def nodes(tree: Any, kind: Any) -> Iterator[Any]:
    """Every node of *kind* (a class or a tuple of classes) in a typed tree, outer ones first, in source order."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (Expression, Place, Statement)):
            if isinstance(node, kind):
                yield node
            waiting += [getattr(node, name) for name in _CHILDREN[type(node)]]
        elif isinstance(node, (list, tuple)):
            waiting += reversed(node)


def _children(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that may hold nodes, last one first."""
    leaves = ("at", "type", "operator", "name", "field", "struct", "step")
    return tuple(each.name for each in reversed(fields(kind)) if each.name not in leaves)


_KINDS = [kind for kind in list(globals().values()) if isinstance(kind, type) and is_dataclass(kind)]
_CHILDREN = {kind: _children(kind) for kind in _KINDS}

"""The typed tree: what the front end produces and the back ends read. Nothing here knows Python or LLVM.

An *expression* has a value of a scalar type. A *place* is memory with a type: it can be loaded from, stored
to, and its address taken. Every node has its line and column. Nodes are immutable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from sandbox.native.front.declarations import Callee, Extern, GlobalVariable
from sandbox.native.front.errors import At
from sandbox.native.front.structs import Struct
from sandbox.native.types import Bool, Function, Type
from sandbox.process.once import cached_property


@dataclass(eq=False)
class Expression:
    at: At
    type: Type


@dataclass(eq=False)
class Constant(Expression):
    """An integer or bool. `complement` marks a literal written with ~, which may wrap to its context."""

    value: int
    complement: bool = False


@dataclass(eq=False)
class NullPointer(Expression):
    pass


@dataclass(eq=False)
class Load(Expression):
    place: Place


@dataclass(eq=False)
class AddressOf(Expression):
    place: Place


@dataclass(eq=False)
class Unary(Expression):
    """`-`, `~` or `not`."""

    operator: str
    operand: Expression


@dataclass(eq=False)
class Binary(Expression):
    """`+ - * // % & | ^ << >>` on operands of one type (shifts: the count has an unsigned type of its own)."""

    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Compare(Expression):
    """`== != < <= > >=` on operands of one type."""

    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Logic(Expression):
    """`and` / `or` with short circuit."""

    operator: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Conditional(Expression):
    condition: Expression
    then: Expression
    otherwise: Expression


@dataclass(eq=False)
class Extreme(Expression):
    """`min(left, right)` or `max(left, right)`."""

    name: str
    left: Expression
    right: Expression


@dataclass(eq=False)
class Cast(Expression):
    operand: Expression


@dataclass(eq=False)
class FunctionAddress(Expression):
    target: Callee | Extern


@dataclass(eq=False)
class Call(Expression):
    target: Callee | Extern | Expression
    arguments: tuple[Expression, ...]


@dataclass(eq=False)
class IntrinsicCall(Expression):
    """An operation of the machine: `options` are its constant arguments (memory order, names)."""

    name: str
    arguments: tuple[Expression, ...]
    options: tuple[str, ...] = ()


@dataclass(eq=False)
class Place:
    at: At
    type: Type


@dataclass(eq=False)
class LocalPlace(Place):
    name: str


@dataclass(eq=False)
class GlobalPlace(Place):
    """A variable of the unit or an external one; `name` is its name in the source."""

    name: str
    variable: GlobalVariable | Extern


@dataclass(eq=False)
class Dereference(Place):
    pointer: Expression


@dataclass(eq=False)
class FieldPlace(Place):
    base: Place
    struct: Struct
    field: str


@dataclass(eq=False)
class ElementPlace(Place):
    """Element `index` of an array place."""

    base: Place
    index: Expression


@dataclass(eq=False)
class OffsetPlace(Place):
    """`pointer[index]`: the place `index` elements after where `pointer` points."""

    pointer: Expression
    index: Expression


@dataclass(eq=False)
class Statement:
    at: At


@dataclass(eq=False)
class Assign(Statement):
    place: Place
    value: Expression


@dataclass(eq=False)
class Update(Statement):
    """`place operator= value`: the place is evaluated once."""

    place: Place
    operator: str
    value: Expression


@dataclass(eq=False)
class Zero(Statement):
    """A local array or struct comes into being, all zero."""

    place: LocalPlace


@dataclass(eq=False)
class Evaluate(Statement):
    value: Expression


@dataclass(eq=False)
class Return(Statement):
    value: Expression | None


@dataclass(eq=False)
class If(Statement):
    condition: Expression
    then: Sequence[Statement]
    otherwise: Sequence[Statement]


@dataclass(eq=False)
class While(Statement):
    condition: Expression
    body: Sequence[Statement]


@dataclass(eq=False)
class ForRange(Statement):
    """`for variable in range(start, stop, step)` with Python's meaning; `step` is a constant."""

    variable: LocalPlace
    start: Expression
    stop: Expression
    step: int
    body: Sequence[Statement]


@dataclass(eq=False)
class Break(Statement):
    pass


@dataclass(eq=False)
class Continue(Statement):
    pass


@dataclass(eq=False)
class TypedFunction:
    """A checked function. `locals` maps every local, parameters first, to its type."""

    name: str
    signature: Function
    parameters: tuple[str, ...]
    locals: dict[str, Type]
    body: Sequence[Statement]
    at: At
    filename: str

    @cached_property
    def calls(self) -> tuple[Call | FunctionAddress, ...]:
        """The nodes that call something or take a function's address. Read when the body is complete."""
        return tuple(nodes(self.body, (Call, FunctionAddress)))

    @cached_property
    def globals(self) -> tuple[GlobalPlace, ...]:
        """The nodes that use variables other than its own. Read when the body is complete."""
        return tuple(nodes(self.body, GlobalPlace))


BOOL = Bool()


def nodes(tree: Any, kind: Any) -> Iterator[Any]:
    """Every node of *kind* (a class or a tuple of classes) in a typed tree, outer ones first, in source order."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        children = _CHILDREN.get(type(node))
        if children is not None:
            if isinstance(node, kind):
                yield node
            for name in children:
                waiting.append(getattr(node, name))
        elif isinstance(node, (list, tuple)):
            waiting += reversed(node)


def _children(kind: Any) -> tuple[str, ...]:
    """The fields of a kind of node that may hold nodes, last one first."""
    leaves = ("at", "type", "operator", "name", "field", "struct", "step")
    return tuple(each.name for each in reversed(fields(kind)) if each.name not in leaves)


_KINDS = [
    kind
    for kind in list(globals().values())
    if isinstance(kind, type) and is_dataclass(kind) and issubclass(kind, (Expression, Place, Statement))
]
_CHILDREN = {kind: _children(kind) for kind in _KINDS}

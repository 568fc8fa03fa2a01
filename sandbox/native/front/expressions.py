"""Checking expressions: Python's syntax tree to typed expressions and places."""

from __future__ import annotations

import ast
from typing import Any

from sandbox.native.containers import Container
from sandbox.native.front import access, calls, messages, operators
from sandbox.native.front.declarations import Callee, Const, Extern, GlobalVariable, NullObject
from sandbox.native.front.errors import position
from sandbox.native.front.scope import MISSING, Scope
from sandbox.native.front.structs import Struct
from sandbox.native.tree import (
    BOOL,
    AddressOf,
    Conditional,
    Constant,
    Dereference,
    ElementPlace,
    Expression,
    FieldPlace,
    FunctionAddress,
    GlobalPlace,
    Load,
    LocalPlace,
    NullPointer,
    OffsetPlace,
    Place,
)
from sandbox.native.types import LITERAL, NULL, Array, Function, Int, Pointer, Type, void
from sandbox.process.near import did_you_mean

MAX_DEPTH = 64


class Expressions:
    """Checks the expressions of one function; each method returns a node or raises NativeError."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self._depth = 0

    def value(self, node: ast.expr, expected: Type) -> Expression:
        """*node* as a value of the type *expected*."""
        return self.coerce(node, self.infer(node, expected), expected)

    def condition(self, node: ast.expr) -> Expression:
        """*node* as a bool that decides something."""
        value = self.infer(node)
        if value.type == BOOL:
            return value
        raise self.scope.error(node, messages.condition(node, value.type))

    def infer(self, node: ast.expr, wish: Type | None = None) -> Expression:
        """*node* as a value of the type that it has by itself (perhaps a literal without a width).

        *wish* is the type that the context prefers; it gives a width to literals that have none.
        """
        found = self.examine(node, wish)
        if isinstance(found, Expression):
            return found
        if not found.type.is_scalar:
            message = f"{found.type} does not fit a register: name an element or a field, or use addressof()"
            raise self.scope.error(node, message)
        return Load(found.at, found.type, found)

    def place(self, node: ast.expr) -> Place:
        """*node* as something that has an address."""
        found = self.examine(node)
        if isinstance(found, Place):
            return found
        if isinstance(found, FunctionAddress):
            raise self.scope.error(node, "the name of a function is its address: leave addressof() out")
        raise self.scope.error(node, "this has no address: use a variable, p.field or p[i]")

    def examine(self, node: ast.expr, wish: Type | None = None) -> Expression | Place:
        """*node* as whatever it is."""
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.scope.error(node, messages.unsupported(node))
        if self._depth == MAX_DEPTH:
            raise self.scope.error(node, f"this is nested more than {MAX_DEPTH} deep: assign parts of it to variables")
        self._depth += 1
        found: Expression | Place = method(node, wish)
        self._depth -= 1
        return found

    def coerce(self, node: ast.expr, value: Expression, expected: Type) -> Expression:
        """*value*, with its type settled by the context *expected*; NativeError when they do not go together."""
        if value.type == expected:
            return value
        if value.type == LITERAL and isinstance(value, Constant):
            return self._settled(node, value, expected)
        if value.type == NULL and isinstance(expected, (Pointer, Function)):
            return NullPointer(value.at, expected)
        raise self.scope.error(node, messages.mismatch(node, value.type, expected))

    # names and constants

    def _constant(self, node: ast.Constant, _wish: Type | None) -> Expression:
        if isinstance(node.value, bool):
            return Constant(position(node), BOOL, int(node.value))
        if isinstance(node.value, int):
            return self.literal(node, node.value)
        raise self.scope.error(node, messages.unsupported_constant(node.value))

    def _name(self, node: ast.Name, _wish: Type | None) -> Expression | Place:
        scope = self.scope
        if not scope.is_local(node.id):
            return self._object(node, node.id, scope.static(node))
        if node.id not in scope.locals:
            raise scope.unassigned(node, node.id)
        return LocalPlace(position(node), scope.locals[node.id], node.id)

    def _object(self, node: ast.expr, name: str, value: Any) -> Expression | Place:
        at = position(node)
        if isinstance(value, bool):
            return Constant(at, BOOL, int(value))
        if isinstance(value, int):
            return self.literal(node, int(value))
        if isinstance(value, Const):
            return Constant(at, value.type, value.value)
        if isinstance(value, NullObject):
            return NullPointer(at, NULL)
        if isinstance(value, (GlobalVariable, Extern)):
            return self._declared(node, name, value)
        if isinstance(value, Container):
            return access.bare(self, node, value)
        if isinstance(value, Callee):
            return FunctionAddress(at, value.signature, value)
        raise self.scope.error(node, messages.not_native(name, value))

    def _declared(self, node: ast.expr, name: str, value: GlobalVariable | Extern) -> Expression | Place:
        try:
            type_ = value.type
        except (TypeError, NameError) as error:
            raise self.scope.undeclared(node, f"the declaration of {name}: {error}", error) from None
        if isinstance(value, Extern) and isinstance(type_, Function):
            return FunctionAddress(position(node), type_, value)
        return GlobalPlace(position(node), type_, name, value)

    def literal(self, node: ast.expr, value: int, complement: bool = False) -> Constant:
        """The integer *value*, written as *node*, that has no width yet."""
        if value.bit_length() > operators.MAX_LITERAL_BITS:
            message = f"this constant needs {value.bit_length()} bits; the maximum is {operators.MAX_LITERAL_BITS}"
            raise self.scope.error(node, message)
        return Constant(position(node), LITERAL, value, complement)

    def _settled(self, node: ast.expr, value: Constant, expected: Type) -> Constant:
        if not isinstance(expected, Int):
            raise self.scope.error(node, messages.mismatch(node, LITERAL, expected))
        number = expected.wrap(value.value) if value.complement else value.value
        if not expected.holds(number):
            limits = f"{expected.minimum} to {expected.maximum}"
            raise self.scope.error(node, f"{number} does not fit {expected} ({limits})")
        return Constant(value.at, expected, number)

    # places

    def _attribute(self, node: ast.Attribute, _wish: Type | None) -> Expression | Place:
        static = self.scope.static(node)
        if static is not MISSING:
            return self._object(node, ast.unparse(node), static)
        base = self._pointee(node.value)
        if not isinstance(base.type, Struct):
            raise self.scope.error(node, f"{base.type} has no field {node.attr!r}: only structs have fields")
        return self.field(node, base, base.type, node.attr)

    def field(self, node: ast.expr, base: Place, struct: Struct, name: str) -> FieldPlace:
        """The field *name* of *base*."""
        try:
            fields = struct.fields
        except (TypeError, NameError) as error:
            raise self.scope.undeclared(node, str(error), error) from None
        if name not in fields:
            known = did_you_mean(name, fields) or f"; it has {', '.join(fields)}"
            raise self.scope.error(node, f"struct {struct} has no field {name!r}{known}")
        return FieldPlace(position(node), fields[name], base, struct, name)

    def _pointee(self, node: ast.expr) -> Place:
        found = self.examine(node)
        if isinstance(found, Place) and not isinstance(found.type, Pointer):
            return found
        value = found if isinstance(found, Expression) else Load(found.at, found.type, found)
        if isinstance(value.type, Pointer):
            return Dereference(value.at, value.type.target, value)
        raise self.scope.error(node, f"{value.type} has no fields: only structs and pointers to structs have")

    def _subscript(self, node: ast.Subscript, _wish: Type | None) -> Place:
        if isinstance(node.slice, ast.Slice):
            raise self.scope.error(node, "slices are not in the native language: index one element")
        if isinstance(node.slice, ast.Tuple):
            raise self.scope.error(node, "one index at a time: write p[i][j]")
        container = self.scope.static(node.value)
        if isinstance(container, Container):
            return access.subscript(self, node, container)
        base = self.examine(node.value)
        index, at = self._index(node.slice), position(node)
        if isinstance(base, Place) and isinstance(base.type, Array):
            self._check_bound(node.slice, index, base.type)
            return ElementPlace(at, base.type.element, base, index)
        pointer = base if isinstance(base, Expression) else Load(base.at, base.type, base)
        if not isinstance(pointer.type, Pointer):
            raise self.scope.error(node.value, f"{pointer.type} cannot be indexed: only arrays, pointers and maps can")
        if pointer.type.target == void:
            raise self.scope.error(node.value, "ptr[void] has no element type: cast it to a typed pointer")
        return OffsetPlace(at, pointer.type.target, pointer, index)

    def _index(self, node: ast.expr) -> Expression:
        index = self.infer(node)
        if isinstance(index, Constant) and index.type == LITERAL:
            signed = Int(64, signed=index.value < 0)
            return self._settled(node, index, signed)
        if not isinstance(index.type, Int):
            raise self.scope.error(node, f"an index must be an integer, not {index.type}")
        return index

    def _check_bound(self, node: ast.expr, index: Expression, type_: Array) -> None:
        if isinstance(index, Constant) and not 0 <= index.value < type_.count:
            raise self.scope.error(
                node, f"index {index.value} is out of range: {type_} has indices 0 to {type_.count - 1}"
            )

    # what contains other expressions

    def _unaryop(self, node: ast.UnaryOp, wish: Type | None) -> Expression:
        return operators.unary(self, node, wish)

    def _binop(self, node: ast.BinOp, wish: Type | None) -> Expression:
        return operators.binary(self, node, wish)

    def _compare(self, node: ast.Compare, wish: Type | None) -> Expression:
        return operators.compare(self, node, wish)

    def _boolop(self, node: ast.BoolOp, wish: Type | None) -> Expression:
        return operators.logic(self, node, wish)

    def _ifexp(self, node: ast.IfExp, wish: Type | None) -> Expression:
        condition = self.condition(node.test)
        then, otherwise = operators.operand(self, node.body, wish), operators.operand(self, node.orelse, wish)
        if wish is not None and then.type in (LITERAL, NULL):
            then = operators.Operand(node.body, self.coerce(node.body, then.value, wish))
        then, otherwise = operators.settle(self, then, otherwise, "if-else")
        if not then.type.is_scalar:
            raise self.scope.error(node, "neither value of this if-else has a type: write `x: u64 = ...`")
        return Conditional(position(node), then.type, condition, then.value, otherwise.value)

    def _call(self, node: ast.Call, wish: Type | None) -> Expression:
        return calls.check(self, node, wish)

    def address(self, node: ast.expr) -> Expression:
        """The address of the place *node*."""
        found = self.place(node)
        return AddressOf(position(node), Pointer(found.type), found)

"""Checking uses of containers: subscripts, methods and fields become calls of their operations."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from sandbox.native.containers import PREFIX, Container, Operation, find
from sandbox.native.front.checker import Checker
from sandbox.native.front.errors import position
from sandbox.native.tree import AddressOf, Call, Cast, Dereference, Expression, GlobalPlace, IntrinsicCall, Place, nodes
from sandbox.native.types import Int, Pointer, u64, void

ATOMIC = {"+": "atomic_add", "-": "atomic_sub", "&": "atomic_and", "|": "atomic_or", "^": "atomic_xor"}


def method(checker: Checker, node: ast.Call) -> Expression | None:
    """The call *node* if it is one of a container's method, else None."""
    if not isinstance(node.func, ast.Attribute):
        return None
    container = checker.scope.static(node.func.value)
    if not isinstance(container, Container):
        return None
    operation = container.operations.get(node.func.attr)
    if operation is None or operation.place is not None:
        known = ", ".join(sorted(name for name in container.operations if name.isidentifier())) or "none"
        kind = type(container).__name__
        raise checker.scope.error(node.func, f"{kind} has no method {node.func.attr!r}; it has: {known}")
    return _value(checker, node, container, operation)


def subscript(checker: Checker, node: ast.Subscript, container: Container) -> Place:
    """`container[key]`."""
    if "[]" not in container.operations:
        raise checker.scope.error(node.value, f"{type(container).__name__} cannot be indexed: {_usage(container)}")
    return _place(checker, node, container, "[]", [node.slice])


def bare(checker: Checker, node: ast.expr, container: Container) -> Place:
    """`container` alone, as what fields are read of."""
    if "." not in container.operations:
        raise checker.scope.error(node, f"{type(container).__name__} has no value of its own: {_usage(container)}")
    return _place(checker, node, container, ".", [])


def _usage(container: Container) -> str:
    forms = {"[]": "name[key]", ".": "name.field"}
    return f"write {' or '.join(forms.get(name, f'name.{name}(...)') for name in container.operations)}"


def shared_update(checker: Checker, node: ast.AugAssign, place: Place, operator: str) -> Expression | None:
    """The atomic operation that changes *place*, if that belongs to a container that threads share, else None."""
    if not any(_is_shared(call) for call in nodes(place, Call)):
        return None
    if operator not in ATOMIC or not isinstance(place.type, Int):
        advice = "only += -= &= |= ^= on an integer are atomic: use atomic_cas(addressof(...), old, new)"
        raise checker.scope.error(node, f"other threads change this map at the same time: {advice}")
    at, value = position(node), checker.value(node.value, place.type)
    address = AddressOf(at, Pointer(place.type), place)
    return IntrinsicCall(at, place.type, ATOMIC[operator], (address, value), ("relaxed",))


def _is_shared(call: Call) -> bool:
    state = call.arguments[0] if call.arguments else None
    if not isinstance(state, AddressOf) or not isinstance(state.place, GlobalPlace):
        return False
    symbol = getattr(state.place.variable, "symbol", "")
    return symbol.startswith(PREFIX) and find(symbol).is_shared


def _place(checker: Checker, node: ast.expr, container: Container, name: str, arguments: Sequence[ast.expr]) -> Place:
    operation = container.operations[name]
    assert operation.place is not None
    address = _call(checker, node, container, operation, arguments)
    return Dereference(address.at, operation.place, Cast(address.at, Pointer(operation.place), address))


def _value(checker: Checker, node: ast.Call, container: Container, operation: Operation) -> Expression:
    wanted, given = len(operation.parameters), len(node.args)
    if wanted != given:
        plural = "" if wanted == 1 else "s"
        raise checker.scope.error(node, f"{ast.unparse(node.func)} takes {wanted} argument{plural}, not {given}")
    call = _call(checker, node, container, operation, node.args)
    if operation.result in (void, call.type):
        return call
    return Cast(call.at, operation.result, call)


def _call(
    checker: Checker, node: ast.expr, container: Container, operation: Operation, arguments: Sequence[ast.expr]
) -> Call:
    at = position(node)
    state = AddressOf(
        at, Pointer(container.state_type), GlobalPlace(at, container.state_type, container.name, container.variable)
    )
    values = [checker.value(argument, type_) for argument, type_ in zip(arguments, operation.parameters, strict=True)]
    words = [value if value.type == u64 else Cast(value.at, u64, value) for value in values]
    return Call(at, operation.function.signature.result, operation.function, (state, *words))

"""Checking calls: intrinsics, native functions, external functions, function pointers, a few of Python's built-ins."""

from __future__ import annotations

import ast
import builtins
from typing import Any

from sandbox.native.front import access, messages, operators
from sandbox.native.front.annotations import Namespace
from sandbox.native.front.checker import Checker
from sandbox.native.front.declarations import Extern
from sandbox.native.front.errors import position
from sandbox.native.front.structs import Struct
from sandbox.native.intrinsics import Construct, Intrinsic
from sandbox.native.tree import (
    BOOL,
    Call,
    Cast,
    Constant,
    Expression,
    FunctionAddress,
    IntrinsicCall,
)
from sandbox.native.types import LITERAL, NULL, Bool, Function, Int, Pointer, Type, i64, u64, void

RESULTS: dict[str, Type] = {"void": void, "bool": BOOL, "u64": u64, "i64": i64}


def check(checker: Checker, node: ast.Call, wish: Type | None) -> Expression:
    """The call *node*, whatever it calls."""
    scope = checker.scope
    for keyword in node.keywords:
        raise scope.error(keyword, "keyword arguments are not in the native language: pass by position")
    for argument in node.args:
        if isinstance(argument, ast.Starred):
            raise scope.error(argument, "* is not in the native language: write the arguments out")
    target = scope.static(node.func)
    if isinstance(target, Construct):
        checked: Expression = _CONSTRUCTS[target.name](checker, node, wish)
        return checked
    if isinstance(target, Intrinsic):
        return _intrinsic(checker, node, target)
    if target is builtins.min or target is builtins.max:
        _arity(checker, node, target.__name__, 2, 2)
        return operators.extreme(checker, node, target.__name__, wish)
    if isinstance(target, Type):
        _arity(checker, node, str(target), 1, 1)
        return _converted(checker, node, target, node.args[0])
    return access.method(checker, node) or _call(checker, node)


def _call(checker: Checker, node: ast.Call) -> Expression:
    value = checker.infer(node.func)
    if not isinstance(value.type, Function):
        raise checker.scope.error(node.func, f"{value.type} cannot be called: only functions and function pointers can")
    parameters, given = value.type.parameters, len(node.args)
    if given != len(parameters):
        name = ast.unparse(node.func)
        raise checker.scope.error(node, f"{name}() takes {_count(len(parameters))}, not {given}")
    arguments = tuple(checker.value(a, t) for a, t in zip(node.args, parameters, strict=True))
    target = value.target if isinstance(value, FunctionAddress) else value
    return Call(position(node), value.type.result, target, arguments)


def _count(number: int) -> str:
    return f"{number} argument{'' if number == 1 else 's'}"


def _arity(checker: Checker, node: ast.Call, name: str, least: int, most: int) -> None:
    if not least <= len(node.args) <= most:
        wanted = _count(least) if least == most else f"{least} {'or' if most == least + 1 else 'to'} {most} arguments"
        raise checker.scope.error(node, f"{name}() takes {wanted}, not {len(node.args)}")


def _intrinsic(checker: Checker, node: ast.Call, row: Intrinsic) -> Expression:
    least = 1 if row.name == "syscall" else len(row.shape)
    most = len(row.shape) + (1 if row.order else 0)
    _arity(checker, node, row.name, least, most)
    plain: list[ast.expr] = node.args
    options: tuple[str, ...] = ()
    if row.order:
        plain = node.args[: len(row.shape)]
        options = (_order(checker, node, row),)
    arguments = _Arguments(checker, row).check(plain)
    return IntrinsicCall(position(node), _result(row, arguments), row.name, arguments, options)


def _order(checker: Checker, node: ast.Call, row: Intrinsic) -> str:
    if len(node.args) == len(row.shape):
        return row.order
    last = node.args[-1]
    if isinstance(last, ast.Constant) and last.value in row.orders:
        return str(last.value)
    orders = ", ".join(f'"{order}"' for order in row.orders)
    raise checker.scope.error(
        last, f"the memory order of {row.name}() must be one of {orders}, not {messages.quote(last)}"
    )


def _result(row: Intrinsic, arguments: tuple[Expression, ...]) -> Type:
    if row.result == "same":
        return arguments[0].type
    if row.result == "value":
        address = arguments[0].type
        assert isinstance(address, Pointer)
        return address.target
    return RESULTS[row.result]


class _Arguments:
    """Checks the arguments of an intrinsic against the letters of its shape."""

    def __init__(self, checker: Checker, row: Intrinsic) -> None:
        self.checker, self.row = checker, row
        self.target: Type = void

    def check(self, nodes: list[ast.expr]) -> tuple[Expression, ...]:
        return tuple(getattr(self, f"_{letter}")(n) for letter, n in zip(self.row.shape, nodes, strict=False))

    def _a(self, node: ast.expr) -> Expression:
        address = self.checker.infer(node)
        if not isinstance(address.type, Pointer):
            raise self.checker.scope.error(
                node, f"{self.row.name}() takes a pointer, not {address.type}: write addressof(...)"
            )
        target = address.type.target
        if self.row.name in _ARITHMETIC and not isinstance(target, Int):
            raise self.checker.scope.error(node, f"{self.row.name}() works on integers, not {target}")
        if not target.is_scalar or isinstance(target, Bool):
            raise self.checker.scope.error(node, f"{self.row.name}() works on integers and pointers, not {target}")
        self.target = target
        return address

    def _v(self, node: ast.expr) -> Expression:
        return self.checker.value(node, self.target)

    def _b(self, node: ast.expr) -> Expression:
        return self.checker.condition(node)

    def _u(self, node: ast.expr) -> Expression:
        return self.checker.value(node, u64)

    def _i(self, node: ast.expr) -> Expression:
        value = self.checker.infer(node)
        if isinstance(value.type, Int):
            return value
        hint = "" if value.type == void else f": write cast(u64, {messages.quote(node)})"
        raise self.checker.scope.error(node, f"{self.row.name}() takes a typed integer, not {value.type}{hint}")

    def _w(self, node: ast.expr) -> Expression:
        """A word of a system call: any integer (extended by its sign), a pointer, null."""
        checker, value = self.checker, self.checker.infer(node)
        if value.type == LITERAL and isinstance(value, Constant):
            return checker.coerce(node, value, i64 if value.value < 0 else u64)
        if value.type == NULL:
            return Constant(value.at, u64, 0)
        if not isinstance(value.type, (Int, Pointer, Function)):
            hint = f": write cast(u64, {messages.quote(node)})" if isinstance(value.type, Bool) else ""
            raise checker.scope.error(node, f"syscall() takes integers and pointers, not {value.type}{hint}")
        return value if value.type == u64 else Cast(value.at, u64, value)


_ARITHMETIC = (
    "atomic_add",
    "atomic_sub",
    "atomic_and",
    "atomic_or",
    "atomic_xor",
    "single_add",
    "single_sub",
    "single_cas",
)


def _cast(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "cast", 2, 2)
    return _converted(checker, node, checker.scope.type_of(node.args[0]), node.args[1])


def _converted(checker: Checker, node: ast.Call, wanted: Type, argument: ast.expr) -> Expression:
    """*argument* as a *wanted*: `cast(i32, x)`, or `i32(x)`."""
    value = checker.infer(argument)
    at = position(node)
    if isinstance(value, Constant) and value.type == LITERAL:
        return _cast_literal(checker, node, wanted, value)
    if value.type == NULL:
        return checker.coerce(argument, value, wanted)
    if value.type == wanted:
        return value
    problem = messages.cast_problem(value.type, wanted)
    if problem:
        raise checker.scope.error(node, problem)
    return Cast(at, wanted, value)


def _cast_literal(checker: Checker, node: ast.Call, wanted: Type, value: Constant) -> Expression:
    at = position(node)
    if isinstance(wanted, Int):
        return Constant(at, wanted, wanted.wrap(value.value))
    if isinstance(wanted, (Pointer, Function)):
        return Cast(at, wanted, checker.coerce(node.args[-1], value, u64 if value.value >= 0 else i64))
    raise checker.scope.error(node, messages.cast_problem(u64, wanted))


def _addressof(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "addressof", 1, 1)
    return checker.address(node.args[0])


def _sizeof(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "sizeof", 1, 1)
    type_ = checker.scope.type_of(node.args[0])
    try:
        return Constant(position(node), u64, type_.size)
    except (TypeError, NameError) as error:
        raise checker.scope.error(node, str(error)) from None


def _offsetof(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "offsetof", 2, 2)
    struct, field = checker.scope.type_of(node.args[0]), node.args[1]
    if not isinstance(struct, Struct) or not isinstance(field, ast.Constant):
        raise checker.scope.error(
            node, 'offsetof() takes a struct and the name of a field: write offsetof(Struct, "field")'
        )
    try:
        return Constant(position(node), u64, struct.offset(str(field.value)))
    except (AttributeError, TypeError, NameError) as error:
        raise checker.scope.error(field, str(error)) from None


def _zero_fill(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "zero_fill", 1, 1)
    address = _sized_pointer(checker, node.args[0], "zero_fill")
    return IntrinsicCall(position(node), void, "zero_fill", (address,))


def _copy(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    _arity(checker, node, "copy", 2, 2)
    target = _sized_pointer(checker, node.args[0], "copy")
    source = checker.value(node.args[1], target.type)
    return IntrinsicCall(position(node), void, "copy", (target, source))


def _sized_pointer(checker: Checker, node: ast.expr, name: str) -> Expression:
    address = checker.infer(node)
    if isinstance(address.type, Pointer) and address.type.target != void:
        return address
    raise checker.scope.error(
        node, f"{name}() takes a pointer to a type with a size, not {address.type}: write addressof(...), or cast()"
    )


def _probe_read(checker: Checker, node: ast.Call, _wish: Type | None) -> Expression:
    """A call of the runtime's guarded copy: (to, from, size) -> bytes copied, or a negative errno."""
    name = ast.unparse(node.func).rpartition(".")[2]
    _arity(checker, node, name, 3, 3)
    to, source = _address_word(checker, node.args[0], name, False), _address_word(checker, node.args[1], name, True)
    size = checker.value(node.args[2], u64)
    _check_size(checker, node.args[2], to, size)
    words = tuple(value if value.type == u64 else Cast(value.at, u64, value) for value in (to, source, size))
    return Call(position(node), i64, _GUARDED[name], words)


def _address_word(checker: Checker, node: ast.expr, name: str, is_source: bool) -> Expression:
    value = checker.infer(node, u64 if is_source else None)
    if is_source and value.type == LITERAL:
        return checker.coerce(node, value, u64)
    if isinstance(value.type, Pointer) or (is_source and value.type == u64):
        return value
    wanted = "a pointer or a u64" if is_source else "a pointer: write addressof(...)"
    raise checker.scope.error(node, f"{name}() takes {wanted} here, not {value.type}")


def _check_size(checker: Checker, node: ast.expr, to: Expression, size: Expression) -> None:
    """A constant size has to fit a destination whose type shows how much it holds."""
    assert isinstance(to.type, Pointer)
    target = to.type.target
    if isinstance(size, Constant) and not isinstance(target, Int) and target != void and size.value > target.size:
        raise checker.scope.error(
            node, f"the size is {size.value}, but the destination, {target}, has {target.size} bytes"
        )


_COPY = Function(i64, (u64, u64, u64))
_GUARDED = {name: Extern(_COPY, Namespace({}, {}), f"ftrace_{name}") for name in ("probe_read", "probe_read_str")}

_CONSTRUCTS: dict[str, Any] = {
    "cast": _cast,
    "addressof": _addressof,
    "sizeof": _sizeof,
    "offsetof": _offsetof,
    "zero_fill": _zero_fill,
    "copy": _copy,
    "probe_read": _probe_read,
    "probe_read_str": _probe_read,
}

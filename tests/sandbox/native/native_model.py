"""The Python model: the meaning of functions without pointers, in Python with integers that wrap.

A second back end, which shares nothing with the lowering to LLVM: the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from sandbox.native import NativeFunction
from sandbox.native.front.structs import Struct
from sandbox.native.tree import (
    Assign,
    Binary,
    Break,
    Call,
    Cast,
    Compare,
    Conditional,
    Constant,
    Continue,
    ElementPlace,
    Evaluate,
    Expression,
    Extreme,
    FieldPlace,
    ForRange,
    If,
    IntrinsicCall,
    Load,
    LocalPlace,
    Logic,
    Place,
    Return,
    Statement,
    TypedFunction,
    Unary,
    Update,
    While,
    Zero,
)
from sandbox.native.types import Array, Bool, Int, Type


@cache
def model(native: NativeFunction) -> Callable[..., Any]:
    """A Python function that computes what *native* computes.

    Raises TypeError when *native* touches memory through pointers, global variables or the machine.
    """
    function = native.typed
    writer = _Writer(function)
    code = compile(writer.source(), f"<model of {function.name}>", "exec")
    names: dict[str, Any] = {**_NAMES, **writer.callees}
    exec(code, names)
    return _checking_arguments(function, names["model"])


def _checking_arguments(function: TypedFunction, model: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        types = function.signature.parameters
        if len(arguments) != len(types):
            raise TypeError(
                f"{function.name}() takes {len(types)} argument{'' if len(types) == 1 else 's'}, not {len(arguments)}"
            )
        for name, type_, value in zip(function.parameters, types, arguments, strict=True):
            _check_argument(f"{function.name}: {name}", type_, value)
        return model(*arguments)

    return call


def _check_argument(what: str, type_: Type, value: Any) -> None:
    if not isinstance(value, bool if isinstance(type_, Bool) else int):
        raise TypeError(f"{what} must be {'a bool' if isinstance(type_, Bool) else f'an int ({type_})'}, not {value!r}")
    if isinstance(type_, Int) and not type_.holds(value):
        raise OverflowError(f"{what} is {value}; {type_} holds {type_.minimum} to {type_.maximum}")


class _Writer:
    """Writes the Python source of one function."""

    def __init__(self, function: TypedFunction) -> None:
        self._function = function
        self.callees: dict[str, Any] = {}

    def source(self) -> str:
        """The definition of `model`."""
        parameters = ", ".join(f"v_{name}" for name in self._function.parameters)
        return "\n".join([f"def model({parameters}):", *self._block(self._function.body)])

    def _refuse(self, node: Any, what: str) -> TypeError:
        function = self._function
        return TypeError(f"{function.name} has no Python model: {what} ({function.filename}:{node.at.line})")

    # statements

    def _block(self, body: Sequence[Statement]) -> Iterator[str]:
        yield "    pass"
        for statement in body:
            for line in self._statement(statement):
                yield f"    {line}"

    def _statement(self, node: Statement) -> Iterator[str]:
        match node:
            case Assign(place=place, value=value):
                yield f"{self._place(place)} = {self._value(value)}"
            case Update(place=place, operator=operator, value=value):
                old, new = self._place(place), self._value(value)
                yield f"{old} = {self._operation(place.type, operator, old, new)}"
            case Zero(place=place):
                yield f"v_{place.name} = {_zero(place.type)}"
            case Evaluate(value=value):
                yield self._value(value)
            case Return(value=value):
                yield f"return {self._value(value) if value else ''}"
            case Break() | Continue():
                yield type(node).__name__.lower()
            case _:
                yield from self._compound(node)

    def _compound(self, node: Statement) -> Iterator[str]:
        match node:
            case If():
                yield from self._if(node)
            case While(condition=condition, body=body):
                yield f"while {self._value(condition)}:"
                yield from self._block(body)
            case ForRange(variable=variable, start=start, stop=stop, step=step, body=body):
                yield f"for v_{variable.name} in range({self._value(start)}, {self._value(stop)}, {step}):"
                yield from self._block(body)

    def _if(self, node: If) -> Iterator[str]:
        word = "if"
        rest: list[Statement] = [node]
        while len(rest) == 1 and isinstance(rest[0], If):
            yield f"{word} {self._value(rest[0].condition)}:"
            yield from self._block(rest[0].then)
            word, rest = "elif", list(rest[0].otherwise)
        yield "else:"
        yield from self._block(rest)

    # expressions

    def _value(self, node: Expression) -> str:
        match node:
            case Constant(type=type_, value=value):
                return str(bool(value)) if isinstance(type_, Bool) else f"({value})"
            case Load(place=place):
                return self._place(place)
            case Unary(operator=operator, operand=operand):
                return self._wrapped(node.type, f"({operator} {self._value(operand)})")
            case Binary(operator=operator, left=left, right=right):
                return self._operation(node.type, operator, self._value(left), self._value(right))
            case Compare(operator=operator, left=left, right=right) | Logic(operator=operator, left=left, right=right):
                return f"({self._value(left)} {operator} {self._value(right)})"
            case Conditional(condition=condition, then=then, otherwise=otherwise):
                return f"({self._value(then)} if {self._value(condition)} else {self._value(otherwise)})"
            case Extreme(name=name, left=left, right=right):
                return f"{name}({self._value(left)}, {self._value(right)})"
            case Cast(operand=operand) if isinstance(operand.type, (Int, Bool)) and isinstance(node.type, Int):
                return self._wrapped(node.type, f"int({self._value(operand)})")
            case Call(target=target) if isinstance(target, NativeFunction):
                return self._call(node, target)
            case IntrinsicCall(name=name) if name in _INTRINSICS:
                return self._intrinsic(node)
        raise self._refuse(node, "it uses memory or the processor")

    def _wrapped(self, type_: Type, text: str) -> str:
        return f"{type_}.wrap({text})" if isinstance(type_, Int) else text

    def _operation(self, type_: Type, operator: str, left: str, right: str) -> str:
        name = _GUARDED.get(operator)
        if name is None:
            return self._wrapped(type_, f"({left} {operator} {right})")
        return self._wrapped(type_, f"{name}({left}, {right})")

    def _call(self, node: Call, target: NativeFunction) -> str:
        name = f"f{len(self.callees)}_{target.name}"
        self.callees[name] = lambda *arguments: model(target)(*arguments)
        return f"{name}({', '.join(map(self._value, node.arguments))})"

    def _intrinsic(self, node: IntrinsicCall) -> str:
        arguments = [self._value(argument) for argument in node.arguments]
        if node.arguments and isinstance(node.arguments[0].type, Int):
            arguments.append(str(node.arguments[0].type))
        return f"{node.name}({', '.join(arguments)})"

    def _place(self, node: Place) -> str:
        match node:
            case LocalPlace(name=name):
                return f"v_{name}"
            case FieldPlace(base=base, field=field):
                return f"{self._place(base)}[{field!r}]"
            case ElementPlace(base=base, index=index) if isinstance(base.type, Array):
                return f"{self._place(base)}[within({self._value(index)}, {base.type.count})]"
        raise self._refuse(node, "it reads or writes memory")


def _zero(type_: Type) -> str:
    if isinstance(type_, Array):
        return f"[{_zero(type_.element)} for _ in range({type_.count})]"
    if isinstance(type_, Struct):
        return "{" + ", ".join(f"{name!r}: {_zero(field)}" for name, field in type_.fields.items()) + "}"
    return "False" if isinstance(type_, Bool) else "0"


def _within(index: int, count: int) -> int:
    return index if 0 <= index < count else 0


def _divide(a: int, b: int) -> int:
    return a // b if b else 0


def _remainder(a: int, b: int) -> int:
    return a % b if b else a


def _shift_left(a: int, b: int) -> int:
    return a << b if b < 64 else 0


def _popcount(value: int, type_: Int) -> int:
    return bin(value % (1 << type_.bits)).count("1")


def _leading_zeros(value: int, type_: Int) -> int:
    return type_.bits - (value % (1 << type_.bits)).bit_length()


def _trailing_zeros(value: int, type_: Int) -> int:
    return (value & -value).bit_length() - 1 if value else type_.bits


def _byteswap(value: int, type_: Int) -> int:
    data = (value % (1 << type_.bits)).to_bytes(type_.size, "little")
    return int.from_bytes(data, "big", signed=type_.signed)


def _multiply_high(a: int, b: int, _type: Int) -> int:
    return a * b >> 64


def _trap() -> None:
    raise RuntimeError("trap()")


def _nothing() -> None:
    pass


def _same(value: bool) -> bool:
    return value


_GUARDED = {"//": "divide", "%": "remainder", "<<": "shift_left"}
_INTRINSICS: dict[str, Any] = {
    "likely": _same,
    "unlikely": _same,
    "popcount": _popcount,
    "leading_zeros": _leading_zeros,
    "trailing_zeros": _trailing_zeros,
    "byteswap": _byteswap,
    "multiply_high": _multiply_high,
    "trap": _trap,
    "fence": _nothing,
    "signal_fence": _nothing,
    "pause": _nothing,
}
_NAMES: dict[str, Any] = {
    **{str(type_): type_ for bits in (8, 16, 32, 64) for type_ in (Int(bits, True), Int(bits, False))},
    **_INTRINSICS,
    "divide": _divide,
    "remainder": _remainder,
    "shift_left": _shift_left,
    "within": _within,
}

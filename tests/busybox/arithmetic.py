"""The arithmetic of `$((EXPRESSION))`: numbers of 64 bits, with the operators of C."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, MutableMapping
from typing import Any

from tests.busybox.tokens import ParameterError

_BITS = 64
_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*(<<|>>|[-+*/%&|^]|)=(?!=)(.*)", re.DOTALL)
_CHOICE = re.compile(r"([^?]*)\?([^:]*):(.*)", re.DOTALL)
_NAME = re.compile(r"(?<!\w)[A-Za-z_]\w*")
_OCTAL = re.compile(r"(?<![\w.])0([0-7]+)\b")
_WORDS = (("&&", " and "), ("||", " or "))
_NOT = re.compile(r"!(?!=)")


def _quotient(left: int, right: int) -> int:
    """The quotient without its fraction, as in C."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: _quotient,
    ast.Mod: lambda left, right: left - right * _quotient(left, right), ast.LShift: operator.lshift,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip


def evaluated(text: str, variables: MutableMapping[str, str]) -> int:
    """The value of an expression; its assignments are made in `variables`. Raises ParameterError."""
    if assignment := _ASSIGNMENT.fullmatch(text):
        name, how, rest = assignment.groups()
        value = evaluated(f"{name} {how} ({rest})" if how else rest, variables)
        variables[name] = str(value)
        return value
    if choice := _CHOICE.fullmatch(text):
        return evaluated(choice[2] if evaluated(choice[1], variables) else choice[3], variables)
    known = _NAME.sub(lambda name: f"({variables.get(name[0], '') or '0'})", text)
    known = _NOT.sub(" not ", _OCTAL.sub(r"0o\1", known))
    for symbol, word in _WORDS:
        known = known.replace(symbol, word)
    try:
        value = _value(ast.parse(known.strip() or "0", mode="eval").body)
    except ZeroDivisionError:
        raise ParameterError("divide by zero") from None
    except (SyntaxError, ArithmeticError, KeyError, ValueError) as wrong:
        raise ParameterError(f"arithmetic syntax error: {text}") from wrong
    return (value + (1 << _BITS - 1)) % (1 << _BITS) - (1 << _BITS - 1)


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(int(value)):
            return int(value)
        case ast.BinOp(left, operation, right):
            return int(_OPERATORS[type(operation)](_value(left), _value(right)))
        case ast.UnaryOp(operation, operand):
            return int(_OPERATORS[type(operation)](_value(operand)))
        case ast.Compare(left, [operation], [right]):
            return int(_OPERATORS[type(operation)](_value(left), _value(right)))
        case ast.BoolOp(ast.And(), values):
            return int(all(map(_value, values)))
        case ast.BoolOp(ast.Or(), values):
            return int(any(map(_value, values)))
    raise KeyError(type(node))

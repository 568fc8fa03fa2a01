"""Lowering arithmetic with Python's meaning: floor division, shifts of any count, no trap on a zero divisor."""

from __future__ import annotations

from sandbox.native.back.emitter import Emitter
from sandbox.native.back.module import register
from sandbox.native.tree import Constant, Expression
from sandbox.native.types import Bool, Int, Type

PLAIN = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}


def binary(emitter: Emitter, type_: Type, operator: str, left: str, right_node: Expression, right: str) -> str:
    """`left operator right`; *right_node* shows whether the right operand is a constant."""
    if operator in PLAIN:
        return emitter.value(f"{PLAIN[operator]} {register(type_)} {left}, {right}")
    assert isinstance(type_, Int)
    if operator in ("<<", ">>"):
        return _shift(emitter, type_, operator, left, right_node, right)
    return _divide(emitter, type_, operator, left, right_node, right)


def convert(emitter: Emitter, source: Type, wanted: Type, operand: str) -> str:
    """An integer or bool as another integer type: cut off, or extended by the sign of the source."""
    assert isinstance(wanted, Int)
    if isinstance(source, Bool):
        return emitter.value(f"zext i1 {operand} to {register(wanted)}")
    assert isinstance(source, Int)
    if source.bits == wanted.bits:
        return operand
    verb = "trunc" if source.bits > wanted.bits else "sext" if source.signed else "zext"
    return emitter.value(f"{verb} {register(source)} {operand} to {register(wanted)}")


def _shift(emitter: Emitter, type_: Int, operator: str, left: str, count_node: Expression, count: str) -> str:
    word = register(type_)
    verb = "shl" if operator == "<<" else "ashr" if type_.signed else "lshr"
    if isinstance(count_node, Constant):
        return _shift_constant(emitter, type_, verb, left, count_node.value)
    assert isinstance(count_node.type, Int)
    width = register(count_node.type)
    limit = emitter.value(f"icmp ult {width} {count}, {type_.bits}")
    if verb == "ashr":
        count = emitter.value(f"select i1 {limit}, {width} {count}, {width} {type_.bits - 1}")
        amount = convert(emitter, count_node.type, type_, count)
        return emitter.value(f"ashr {word} {left}, {amount}")
    amount = convert(emitter, count_node.type, type_, count)
    shifted = emitter.value(f"{verb} {word} {left}, {amount}")
    return emitter.value(f"select i1 {limit}, {word} {shifted}, {word} 0")


def _shift_constant(emitter: Emitter, type_: Int, verb: str, left: str, count: int) -> str:
    if count >= type_.bits:
        if verb != "ashr":
            return "0"
        count = type_.bits - 1
    return emitter.value(f"{verb} {register(type_)} {left}, {count}")


def _divide(emitter: Emitter, type_: Int, operator: str, left: str, divisor: Expression, right: str) -> str:
    """x // 0 is 0 and x % 0 is x, as in BPF; the least value // -1 wraps to itself."""
    word = register(type_)
    if isinstance(divisor, Constant) and divisor.value != 0:
        return _divide_safely(emitter, type_, operator, left, right, divisor.value)
    divide, end = emitter.label("divide"), emitter.label("divided")
    rare = emitter.rarely(emitter.value(f"icmp eq {word} {right}, 0"), "zero_divisions", divide)
    emitter.jump(end)
    emitter.begin(divide)
    result, divided = _divide_safely(emitter, type_, operator, left, right, None), emitter.current
    emitter.begin(end)
    instead = "0" if operator == "//" else left
    return emitter.value(f"phi {word} [ {instead}, %{rare} ], [ {result}, %{divided} ]")


def _divide_safely(emitter: Emitter, type_: Int, operator: str, left: str, right: str, constant: int | None) -> str:
    word = register(type_)
    if not type_.signed:
        return emitter.value(f"{'udiv' if operator == '//' else 'urem'} {word} {left}, {right}")
    if constant == -1:
        return emitter.value(f"sub {word} 0, {left}") if operator == "//" else "0"
    if constant is not None:
        return _floor(emitter, word, operator, left, right)
    return _divide_by_variable(emitter, word, operator, left, right)


def _divide_by_variable(emitter: Emitter, word: str, operator: str, left: str, right: str) -> str:
    negative = emitter.value(f"icmp eq {word} {right}, -1")
    negate, divide, end = emitter.label("negate"), emitter.label("divide"), emitter.label("divided")
    emitter.branch(negative, negate, divide)
    emitter.begin(negate)
    negated = emitter.value(f"sub {word} 0, {left}") if operator == "//" else "0"
    emitter.jump(end)
    emitter.begin(divide)
    result, divided = _floor(emitter, word, operator, left, right), emitter.current
    emitter.begin(end)
    return emitter.value(f"phi {word} [ {negated}, %{negate} ], [ {result}, %{divided} ]")


def _floor(emitter: Emitter, word: str, operator: str, left: str, right: str) -> str:
    """Towards minus infinity: one less when there is a remainder whose sign is not the divisor's."""
    remainder = emitter.value(f"srem {word} {left}, {right}")
    inexact = emitter.value(f"icmp ne {word} {remainder}, 0")
    signs = emitter.value(f"xor {word} {remainder}, {right}")
    opposite = emitter.value(f"icmp slt {word} {signs}, 0")
    adjust = emitter.value(f"and i1 {inexact}, {opposite}")
    if operator == "%":
        moved = emitter.value(f"add {word} {remainder}, {right}")
        return emitter.value(f"select i1 {adjust}, {word} {moved}, {word} {remainder}")
    quotient = emitter.value(f"sdiv {word} {left}, {right}")
    correction = emitter.value(f"sext i1 {adjust} to {word}")
    return emitter.value(f"add {word} {quotient}, {correction}")

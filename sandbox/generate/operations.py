"""Single steps of computation: each takes values in scope and offers a new one. None has undefined behaviour."""

from __future__ import annotations

from sandbox.generate.body import Body
from sandbox.generate.conversions import LIMIT, float_constant, from_i64, operand, to_i64, word
from sandbox.generate.types import BLOCK_WORDS, FLOATS, INTEGERS, STRUCTS, VECTORS

_BINARY = ("add", "sub", "mul", "and", "or", "xor")
_COMPARISONS = ("eq", "ne", "ugt", "uge", "ult", "ule", "sgt", "sge", "slt", "sle")
_SAFE_INTRINSICS = ("umin", "umax", "smin", "smax", "uadd.sat", "ssub.sat")


def step(body: Body, kind: str) -> str:
    """Compute a new value of that type; its operand."""
    if kind in INTEGERS:
        return body.random.choice(_INTEGER_STEPS)(body, kind)
    if kind in FLOATS:
        return _float_step(body, kind)
    if kind in VECTORS:
        return _vector_step(body, kind)
    if kind in STRUCTS:
        return _struct_step(body, kind)
    return _memory_step(body)


def convert(body: Body, kind: str, other: str) -> str:
    """A value of type `kind` from one of type `other`."""
    return body.keep(kind, from_i64(body, to_i64(body, other, operand(body, other)), kind))


def condition(body: Body) -> str:
    """An i1."""
    kind = body.random.choice(("i8", "i16", "i32", "i64"))
    comparison = body.random.choice(_COMPARISONS)
    return body.emit(f"icmp {comparison} {kind} {operand(body, kind)}, {operand(body, kind)}")


def _binary(body: Body, kind: str) -> str:
    return body.new(kind, f"{body.random.choice(_BINARY)} {kind} {operand(body, kind)}, {operand(body, kind)}")


def _shift(body: Body, kind: str) -> str:
    amount = body.emit(f"and {kind} {operand(body, kind)}, {INTEGERS[kind] - 1}")
    return body.new(kind, f"{body.random.choice(('shl', 'lshr', 'ashr'))} {kind} {operand(body, kind)}, {amount}")


def _divide(body: Body, kind: str) -> str:
    """By 1 to 127: neither zero nor the one overflow. i128 would need a library."""
    if kind == "i128":
        return _shift(body, kind)
    small = body.emit(f"and {kind} {operand(body, kind)}, 127")
    divisor = body.emit(f"or {kind} {small}, 1")
    operation = body.random.choice(("udiv", "sdiv", "urem", "srem"))
    return body.new(kind, f"{operation} {kind} {operand(body, kind)}, {divisor}")


def _select(body: Body, kind: str) -> str:
    chosen = condition(body)
    return body.new(kind, f"select i1 {chosen}, {kind} {operand(body, kind)}, {kind} {operand(body, kind)}")


def _bits(body: Body, kind: str) -> str:
    name = body.random.choice(("ctpop", "bitreverse", "ctlz", "cttz") if kind == "i8" else ("ctpop", "bswap", "ctlz"))
    zero = ", i1 false" if name in ("ctlz", "cttz") else ""
    return body.new(kind, f"call {kind} @llvm.{name}.{kind}({kind} {operand(body, kind)}{zero})")


def _intrinsic(body: Body, kind: str) -> str:
    name = body.random.choice(_SAFE_INTRINSICS)
    arguments = f"{kind} {operand(body, kind)}, {kind} {operand(body, kind)}"
    return body.new(kind, f"call {kind} @llvm.{name}.{kind}({arguments})")


def _overflow(body: Body, kind: str) -> str:
    """The carry of an addition decides."""
    arguments = f"{kind} {operand(body, kind)}, {kind} {operand(body, kind)}"
    pair = body.emit(f"call {{ {kind}, i1 }} @llvm.uadd.with.overflow.{kind}({arguments})")
    total = body.emit(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    carry = body.emit(f"extractvalue {{ {kind}, i1 }} {pair}, 1")
    return body.new(kind, f"select i1 {carry}, {kind} {operand(body, kind)}, {kind} {total}")


_INTEGER_STEPS = (_binary, _binary, _shift, _divide, _select, _bits, _intrinsic, _overflow)


def _bounded(body: Body, kind: str, value: str) -> str:
    """The value if it is below the limit, else 1."""
    overload = kind if kind not in VECTORS else "v{}{}".format(*VECTORS[kind])
    overload = overload.replace("double", "f64").replace("float", "f32").replace("x86_fp80", "f80")
    truth = f"<{VECTORS[kind][0]} x i1>" if kind in VECTORS else "i1"
    size = body.emit(f"call {kind} @llvm.fabs.{overload}({kind} {value})")
    inside = body.emit(f"fcmp olt {kind} {size}, {float_constant(body, kind, LIMIT)}")
    return body.new(kind, f"select {truth} {inside}, {kind} {value}, {kind} {float_constant(body, kind, '1.0')}")


def _float_step(body: Body, kind: str) -> str:
    operation = body.random.choice(("fadd", "fsub", "fmul", "fdiv"))
    left, right = operand(body, kind), operand(body, kind)
    if operation == "fdiv":
        square = body.emit(f"fmul {kind} {right}, {right}")
        right = body.emit(f"fadd {kind} {square}, {float_constant(body, kind, '1.0')}")
    return _bounded(body, kind, body.emit(f"{operation} {kind} {left}, {right}"))


def _vector_step(body: Body, kind: str) -> str:
    lanes, lane = VECTORS[kind]
    choice = body.random.randrange(3)
    if choice == 0:
        mask = ", ".join(f"i32 {body.random.randrange(2 * lanes)}" for _ in range(lanes))
        operands = f"{kind} {operand(body, kind)}, {kind} {operand(body, kind)}"
        return body.new(kind, f"shufflevector {operands}, <{lanes} x i32> <{mask}>")
    if choice == 1:
        place = body.random.randrange(lanes)
        return body.new(kind, f"insertelement {kind} {operand(body, kind)}, {lane} {operand(body, lane)}, i32 {place}")
    if lane in FLOATS:
        operation = body.random.choice(("fadd", "fsub", "fmul"))
        total = body.emit(f"{operation} {kind} {operand(body, kind)}, {operand(body, kind)}")
        return _bounded(body, kind, total)
    return _binary(body, kind)


def _struct_step(body: Body, kind: str) -> str:
    place = body.random.randrange(len(STRUCTS[kind]))
    field = STRUCTS[kind][place]
    new = step(body, field)
    return body.new(kind, f"insertvalue {kind} {operand(body, kind)}, {field} {new}, {place}")


def _memory_step(body: Body) -> str:
    """Exchanges two words of a block, or writes one; it offers what was there."""
    block = operand(body, "ptr")
    first = body.emit(word(body, block))
    old = body.new("i64", f"load i64, ptr {first}")
    body.line(f"store i64 {operand(body, 'i64')}, ptr {first}")
    index = body.emit(f"and i64 {operand(body, 'i64')}, {BLOCK_WORDS - 1}")
    second = body.emit(f"getelementptr i64, ptr {block}, i64 {index}")
    body.line(f"store i64 {old}, ptr {second}")
    return block

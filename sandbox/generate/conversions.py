"""Values of any type from values of any other, by way of i64. Total: every input gives a defined result."""

from __future__ import annotations

from sandbox.generate.body import Body
from sandbox.generate.types import BLOCK_WORDS, FLOATS, INTEGERS, STRUCTS, VECTORS

LIMIT = "1000000.0"
"""Floating-point values stay below this: then no NaN, no infinity, and each fits an i32."""


def operand(body: Body, kind: str) -> str:
    """A value of that type: one in scope, or else one made from an i64 in scope."""
    known = body.in_scope(kind)
    if known and body.random.random() < 0.85:
        return body.random.choice(known)
    if kind == "i64":
        return str(body.random.getrandbits(64) - 2**63)
    return from_i64(body, operand(body, "i64"), kind)


def float_constant(body: Body, kind: str, text: str) -> str:
    """An operand for a decimal constant; x86_fp80 has no such constants, vectors need every lane."""
    if kind == "x86_fp80":
        return body.emit(f"fpext double {text} to x86_fp80")
    if kind in VECTORS:
        return f"splat ({VECTORS[kind][1]} {text})"
    return text


def to_i64(body: Body, kind: str, value: str) -> str:
    """An i64 that depends on all of the value."""
    if kind in INTEGERS:
        return _integer_to_i64(body, kind, value)
    if kind in FLOATS:
        return _float_to_i64(body, kind, value)
    if kind in VECTORS:
        return _vector_to_i64(body, kind, value)
    if kind in STRUCTS:
        fields = enumerate(STRUCTS[kind])
        return mixed(body, [(field, body.emit(f"extractvalue {kind} {value}, {i}")) for i, field in fields])
    return body.emit(f"load i64, ptr {body.emit(word(body, value))}")


def mixed(body: Body, values: list[tuple[str, str]]) -> str:
    """An i64 that depends on all of the values, given as (type, operand), and on their order."""
    total = str(body.random.getrandbits(32))
    for kind, value in values:
        part = to_i64(body, kind, value)
        turned = body.emit(f"call i64 @llvm.fshl.i64(i64 {total}, i64 {total}, i64 7)")
        total = body.emit(f"xor i64 {turned}, {part}")
    return total


def _integer_to_i64(body: Body, kind: str, value: str) -> str:
    if kind == "i64":
        return value
    if kind == "i128":
        high = body.emit(f"trunc i128 {body.emit(f'lshr i128 {value}, 64')} to i64")
        return body.emit(f"xor i64 {high}, {body.emit(f'trunc i128 {value} to i64')}")
    return body.emit(f"{body.random.choice(('sext', 'zext'))} {kind} {value} to i64")


def _float_to_i64(body: Body, kind: str, value: str) -> str:
    scaled = body.emit(f"fmul {kind} {value}, {float_constant(body, kind, '1024.0')}")
    return body.emit(f"fptosi {kind} {scaled} to i64")


def _vector_to_i64(body: Body, kind: str, value: str) -> str:
    """Each lane weighs differently, so that lanes that change places are noticed."""
    lanes, lane = VECTORS[kind]
    whole = {"float": "i32", "double": "i64"}.get(lane, lane)
    if lane in FLOATS:
        value = body.emit(f"fptosi {kind} {value} to <{lanes} x {whole}>")
    weighed = body.emit(f"mul <{lanes} x {whole}> {value}, {_weights(lanes, whole)}")
    overload = f"v{lanes}{whole}"
    total = body.emit(f"call {whole} @llvm.vector.reduce.add.{overload}(<{lanes} x {whole}> {weighed})")
    return _integer_to_i64(body, whole, total)


def _weights(lanes: int, lane: str) -> str:
    texts = (f"{2 * i + 1}.0" if lane in FLOATS else str(0x9E3779B1 * (2 * i + 1) % 2**31) for i in range(lanes))
    return f"<{', '.join(f'{lane} {text}' for text in texts)}>"


def from_i64(body: Body, value: str, kind: str) -> str:
    """A value of that type that depends on the i64."""
    if kind in INTEGERS:
        return _i64_to_integer(body, value, kind)
    if kind in FLOATS:
        return _i64_to_float(body, value, kind)
    if kind in VECTORS:
        return _i64_to_vector(body, value, kind)
    if kind in STRUCTS:
        return _i64_to_struct(body, value, kind)
    return _i64_to_block(body, value)


def _i64_to_integer(body: Body, value: str, kind: str) -> str:
    if kind == "i64":
        return value
    if kind == "i128":
        high = body.emit(f"shl i128 {body.emit(f'zext i64 {value} to i128')}, 64")
        return body.emit(f"or i128 {high}, {body.emit(f'zext i64 {value} to i128')}")
    return body.emit(f"trunc i64 {value} to {kind}")


def _i64_to_float(body: Body, value: str, kind: str) -> str:
    whole = body.emit(f"sitofp i16 {body.emit(f'trunc i64 {value} to i16')} to {kind}")
    return body.emit(f"fmul {kind} {whole}, {float_constant(body, kind, '0.125')}")


def _i64_to_vector(body: Body, value: str, kind: str) -> str:
    lanes, lane = VECTORS[kind]
    one = body.emit(f"insertelement {kind} zeroinitializer, {lane} {from_i64(body, value, lane)}, i32 0")
    same = body.emit(f"shufflevector {kind} {one}, {kind} {one}, <{lanes} x i32> zeroinitializer")
    operation = "fmul" if lane in FLOATS else "mul"
    return body.emit(f"{operation} {kind} {same}, {_weights(lanes, lane)}")


def _i64_to_struct(body: Body, value: str, kind: str) -> str:
    struct = "zeroinitializer"
    for i, field in enumerate(STRUCTS[kind]):
        value = body.emit(f"mul i64 {value}, 6364136223846793005")
        part = from_i64(body, body.emit(f"lshr i64 {value}, 17"), field)
        struct = body.emit(f"insertvalue {kind} {struct}, {field} {part}, {i}")
    return struct


def _i64_to_block(body: Body, value: str) -> str:
    room = body.allocate(f"[{BLOCK_WORDS} x i64]")
    body.line(f"store [{BLOCK_WORDS} x i64] zeroinitializer, ptr {room}")
    body.line(f"store i64 {value}, ptr {body.emit(word(body, room))}")
    return room


def word(body: Body, pointer: str) -> str:
    """The instruction that finds one of the words that a pointer points to."""
    return f"getelementptr i64, ptr {pointer}, i64 {body.random.randrange(BLOCK_WORDS)}"

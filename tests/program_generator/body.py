"""Bodies of generated functions: instructions, values in scope, and total operations on them.

None has undefined behaviour: every input gives a defined result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from random import Random

from .features import BLOCK_WORDS, FLOATS, INTEGERS, STRUCTS, VECTORS

LIMIT = "1000000.0"
"""Floating-point values stay below this: then no NaN, no infinity, and each fits an i32."""
_BINARY = ("add", "sub", "mul", "and", "or", "xor")
_COMPARISONS = ("eq", "ne", "ugt", "uge", "ult", "ule", "sgt", "sge", "slt", "sle")
_SAFE_INTRINSICS = ("umin", "umax", "smin", "smax", "uadd.sat", "ssub.sat")


class Body:
    """The instructions of a function while they are being written.

    Values are known by type. Only values that dominate the current place are in scope, so that whatever is chosen at
    random is well-formed.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.block = "entry"
        """The label of the block being written."""
        self._lines: list[str] = []
        self._allocas: list[str] = []
        self._scopes: list[list[tuple[str, str]]] = [[]]
        self._count = 0

    def fresh(self, stem: str = "v") -> str:
        """A name, without its `%`, that is not used yet."""
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        """Add an instruction without a result."""
        self._lines.append(f"  {text}")

    def emit(self, text: str) -> str:
        """Add an instruction with a result; the operand that names it. It is not offered for later use."""
        name = f"%{self.fresh()}"
        self._lines.append(f"  {name} = {text}")
        return name

    def keep(self, kind: str, operand: str) -> str:
        """Offer a value for later use in this scope."""
        self._scopes[-1].append((kind, operand))
        return operand

    def new(self, kind: str, text: str) -> str:
        """Add an instruction and offer its result."""
        return self.keep(kind, self.emit(text))

    def allocate(self, kind: str) -> str:
        """Room for a value of that type in the frame, uninitialised."""
        name = f"%{self.fresh('room')}"
        self._allocas.append(f"  {name} = alloca {kind}, align 16")
        return name

    def start(self, label: str) -> None:
        """Begin the block `label`. The one before must have been ended by a branch or a return."""
        self._lines.append(f"{label}:")
        self.block = label

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Values that are kept inside are out of scope afterwards."""
        self._scopes.append([])
        yield
        self._scopes.pop()

    @property
    def depth(self) -> int:
        """How many scopes are open."""
        return len(self._scopes) - 1

    def in_scope(self, kind: str) -> list[str]:
        """The operands of that type that may be used here."""
        return [operand for scope in self._scopes for known, operand in scope if known == kind]

    def recent(self, count: int) -> list[tuple[str, str]]:
        """The last values of the innermost scope, as (type, operand)."""
        return self._scopes[-1][-count:]

    def text(self) -> str:
        """The body, from the entry block on."""
        return "\n".join(["entry:", *self._allocas, *self._lines])


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

"""Random programs in LLVM IR whose functions take and return values of all kinds, and the values that a tracer must show."""

from __future__ import annotations

import random
import struct
from typing import Any

from random_signatures import ANY

Value = tuple[str, Any]
"""A constant as IR writes it, and what it is in Python."""

_INTEGERS = (1, 8, 16, 24, 32, 64, 64, 72, 128, 256)
_VECTORS = (
    ("float", 2),
    ("float", 4),
    ("float", 3),
    ("double", 2),
    ("i8", 2),
    ("i16", 4),
    ("i32", 4),
    ("i64", 2),
    ("i64", 4),
)


class IrProgram:
    """A program of `count` functions, called by `main`. `functions`: (values of the parameters, value of the result)."""

    def __init__(self, seed: int, count: int) -> None:
        self.random = random.Random(seed)
        self.definitions: list[str] = []
        self.calls: list[str] = []
        self.functions: list[tuple[list[Any], Any]] = []
        for number in range(count):
            self._function(number)

    @property
    def source(self) -> str:
        """Its text."""
        return "\n".join([*self.definitions, "define i32 @main() {", *self.calls, "  ret i32 0", "}", ""])

    def _function(self, number: int) -> None:
        kinds = [self._kind() for _ in range(self.random.choice((0, 1, 2, 3, 5, 8, 12)))]
        values = [self._value(kind) for kind in kinds]
        heads = [f"{kind} %a{at}" for at, kind in enumerate(kinds)]
        given = [f"{kind} {text}" for kind, (text, _) in zip(kinds, values, strict=True)]
        expected = [value for _, value in values]
        if self.random.random() < 0.3:
            kind = self.random.choice(("[3 x i64]", "{ i32, double }", "[5 x i8]"))
            at, text, value = self.random.randint(0, len(heads)), *self._value(kind)
            attribute = f"byval({kind}) align {self.random.choice((1, 8, 16, 32))}"
            self.calls.append(f"  %p{number} = alloca {kind}, align 32\n  store {kind} {text}, ptr %p{number}")
            heads.insert(at, f"ptr {attribute} %copy")
            given.insert(at, f"ptr {attribute} %p{number}")
            expected.insert(at, value)
        result, (text, returned) = self._returned()
        end = f"ret {result} {text}" if text else "ret void"
        self.definitions.append(f"define {result} @fn_{number}_({', '.join(heads)}) noinline {{\n  {end}\n}}")
        self.calls.append(f"  call {result} @fn_{number}_({', '.join(given)})")
        self.functions.append((expected, returned))

    def _returned(self) -> tuple[str, Value]:
        if self.random.random() < 0.2:
            return "void", ("", ANY)
        kind = self._kind()
        return kind, self._value(kind)

    def _kind(self, depth: int = 2) -> str:
        choice = self.random.random()
        if depth and choice < 0.2:
            return "{ " + ", ".join(self._kind(depth - 1) for _ in range(self.random.randint(1, 4))) + " }"
        if depth and choice < 0.3:
            return f"[{self.random.randint(1, 3)} x {self._kind(depth - 1)}]"
        if choice < 0.4:
            element, lanes = self.random.choice(_VECTORS)
            return f"<{lanes} x {element}>"
        if choice < 0.7:
            return f"i{self.random.choice(_INTEGERS)}"
        return self.random.choice(("ptr", "float", "double", "double", "x86_fp80", "half"))

    def _value(self, kind: str) -> Value:
        if kind[0] in "{[<":
            kinds = _inside(kind)
            found = [self._value(each) for each in kinds]
            listed = ", ".join(f"{each} {text}" for each, (text, _) in zip(kinds, found, strict=True))
            closing = {"{": "}", "[": "]", "<": ">"}[kind[0]]
            return f"{kind[0]} {listed} {closing}", [value for _, value in found]
        if kind == "ptr":
            address = self.random.getrandbits(40)
            return f"inttoptr (i64 {address} to ptr)", address
        if kind[0] == "i":
            return self._integer(int(kind[1:]))
        number = self.random.randrange(-400, 400) / 4
        if kind == "x86_fp80":
            return f"0xK{_extended(number)}", number
        return (f"0xH{struct.pack('>e', number).hex().upper()}" if kind == "half" else f"{number:e}"), number

    def _integer(self, bits: int) -> Value:
        number = self.random.getrandbits(bits)
        if bits == 1:
            return ("true" if number else "false"), bool(number)
        return str(number), number - (1 << bits) if number >> bits - 1 else number


def _inside(kind: str) -> list[str]:
    """The types of the parts of an aggregate or vector."""
    body = kind[1:-1].strip()
    if kind[0] != "{":
        count, _, element = body.partition(" x ")
        return [element] * int(count)
    found, depth = [""], 0
    for letter in body:
        depth += (letter in "{[<") - (letter in "}]>")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def _extended(number: float) -> str:
    """The 80 bits of an x87 number, which has its leading 1."""
    bits = int.from_bytes(struct.pack(">d", number), "big")
    sign, exponent, fraction = bits >> 63, bits >> 52 & 0x7FF, bits & (1 << 52) - 1
    if not exponent:
        return f"{sign << 15:04X}{0:016X}"
    return f"{sign << 15 | exponent - 1023 + 16383:04X}{1 << 63 | fraction << 11:016X}"

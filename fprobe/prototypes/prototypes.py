"""Reading `prototypes.txt`, which has the prototypes of some libraries' functions, as `generate.py` found them in headers.

Its lines, with tabs between the parts:

    library SONAME PACKAGE LICENCE      the functions below are its; facts of the headers of that package
    struct NUMBER NAME SIZE ALIGNMENT FIELD:CODE:OFFSET ...
    FUNCTION CODE PARAMETER:CODE ...    the result, with `!` if a failure sets errno; `...` at the end for a variable number
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sandbox.abi.signatures import Floating, Form, Integer, Parameter, Pointer, Record, Signature, Type, Void
from sandbox.process.once import cached_property, once

DATA = Path(__file__).with_name("prototypes.txt")

_TYPES: dict[str, Type] = {
    "v": Void(), "p": Pointer(), "s": Pointer("const char *"), "c": Integer(8, True, "char"), "o": Integer(1, False, "_Bool"),
    "b": Integer(8, True), "B": Integer(8, False), "h": Integer(16, True), "H": Integer(16, False),
    "i": Integer(32, True, "int"), "I": Integer(32, False), "l": Integer(64, True), "L": Integer(64, False),
    "f": Floating("float"), "d": Floating("double"), "e": Floating("x86_fp80"), "q": Floating("fp128"),
}  # fmt: skip
_SONAME = re.compile(r"(lib[a-z0-9]+?)(?:-[0-9a-f]{6,})?(\.so\.\d+)")


class Prototype(NamedTuple):
    """A function. `targets`: the structure behind each parameter that is a pointer to one that the function only reads.

    `outputs`: the same for one that it may write. `sets_errno`: whether a result of -1, or no pointer, is a failure with errno.
    """

    signature: Signature
    targets: dict[int, Record]
    outputs: dict[int, Record]
    sets_errno: bool


class _Section:
    """The lines of a library, read one by one as they are asked for."""

    def __init__(self, lines: Iterable[str]) -> None:
        rows = [line.split("\t") for line in lines]
        self._structures = [row[2] for row in rows if row[0] == "struct"]
        self._functions = {row[0]: row[1:] for row in rows if row[0] != "struct"}

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(self._functions)

    def prototype(self, name: str) -> Prototype | None:
        row = self._functions.get(name)
        if row is None:
            return None
        result, listed = row[0], row[1].split()
        parts = [part.split(":") for part in listed if part != "..."]
        parameters = tuple(Parameter(self._type(code), shown) for shown, code in parts)
        signature = Signature(name, self._type(result.rstrip("!")), parameters, "..." in listed, is_c=True)
        behind = {
            at: (code[0], self._structure(int(code[1:]))) for at, (_, code) in enumerate(parts) if code[0] in "*&"
        }
        targets = {at: record for at, (mark, record) in behind.items() if mark == "*"}
        outputs = {at: record for at, (mark, record) in behind.items() if mark == "&"}
        return Prototype(signature, targets, outputs, result.endswith("!"))

    def _type(self, code: str) -> Type:
        if code[0] == "{":
            return self._structure(int(code[1:-1]))
        return Pointer() if code[0] in "*&" else _TYPES[code]

    def _structure(self, number: int) -> Record:
        name, size, alignment, *fields = self._structures[number].split(" ")
        parts = [field.split(":") for field in fields if field]
        made = tuple((shown, _TYPES[code]) for shown, code, _ in parts)
        bits = tuple((8 * int(offset), 0) for _, _, offset in parts)
        return Record(made, f"struct {name}", form=Form(int(size), int(alignment), bits, "it is only shown"))


@once
def _sections() -> dict[str, _Section]:
    """The libraries by name."""
    _, *sections = DATA.read_text().split("library\t")
    found = {}
    for section in sections:
        head, *lines = section.splitlines()
        found[head.partition("\t")[0]] = _Section(lines)
    return found


def is_known_library(library: str) -> bool:
    """Whether prototypes of the library whose file has this name are shipped."""
    return _section(library) is not None


def _section(library: str) -> _Section | None:
    """A copy in a wheel has a hash in its name: `libcrypto-1a2b3c4d.so.3`."""
    named = _SONAME.match(library)
    return _sections().get(f"{named[1]}{named[2]}") if named else None


def prototype(library: str, names: Iterable[str]) -> Prototype | None:
    """The prototype of a function with these names, in the library whose file is called `library`; None if it is not known."""
    section = _section(library)
    if section is None:
        return None
    return next((found for name in names if (found := section.prototype(name))), None)

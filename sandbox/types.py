"""Types of arguments and return values, and the signatures of functions, as the loader knows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """Base of all types; `str()` gives the way the source language writes it."""


@dataclass(frozen=True)
class Void(Type):
    """No value."""

    def __str__(self) -> str:
        return "void"


@dataclass(frozen=True)
class Integer(Type):
    """An integer of `bits` bits. `signed` is None where the source does not say (LLVM IR)."""

    bits: int
    signed: bool | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or f"i{self.bits}"

    @property
    def lowest(self) -> int:
        """The least value that is accepted."""
        return 0 if self.signed is False else -(1 << (self.bits - 1))

    @property
    def highest(self) -> int:
        """The greatest value that is accepted; without a sign that of the unsigned reading."""
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


@dataclass(frozen=True)
class Floating(Type):
    """A floating-point number: `kind` is half, float, double, x86_fp80, fp128 or bfloat."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.kind


@dataclass(frozen=True)
class Pointer(Type):
    """An address; `target` is the type pointed to, where the source says."""

    target: Type | None = None
    name: str = ""

    def __str__(self) -> str:
        return self.name or (f"{self.target} *" if self.target else "ptr")


@dataclass(frozen=True)
class Array(Type):
    """`count` elements in a row."""

    element: Type
    count: int
    is_vector: bool = False

    def __str__(self) -> str:
        opening, closing = "<>" if self.is_vector else "[]"
        return f"{opening}{self.count} x {self.element}{closing}"


@dataclass(frozen=True)
class Record(Type):
    """A struct or union. `fields` are (name, type); without names in IR: `_0`, `_1`, ..."""

    fields: tuple[tuple[str, Type], ...]
    name: str = ""
    packed: bool = False
    is_union: bool = False
    size: int = 0

    def __str__(self) -> str:
        inside = ", ".join(str(kind) for _, kind in self.fields)
        return self.name or (f"<{{{inside}}}>" if self.packed else f"{{{inside}}}")


@dataclass(frozen=True)
class Parameter:
    """A parameter: `name` is empty if the source gives none. `attributes` as the IR writes them."""

    type: Type
    name: str = ""
    attributes: tuple[str, ...] = ()
    by_value: Type | None = None

    def __str__(self) -> str:
        return f"{self.type} {self.name}".strip()


@dataclass(frozen=True)
class Signature:
    """What a function takes and returns. `convention` is empty for the C calling convention."""

    name: str
    returns: Type
    parameters: tuple[Parameter, ...]
    variadic: bool = False
    convention: str = ""

    def __str__(self) -> str:
        listed = [str(parameter) for parameter in self.parameters] + ["..."] * self.variadic
        return f"{self.returns} {self.name}({', '.join(listed)})"

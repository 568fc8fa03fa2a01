"""Signatures of functions, and their types, for every source language."""

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
    """A floating-point number; `kind` is LLVM's name, half, bfloat, float, double, x86_fp80 or fp128, or decimal32, 64 or 128."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.kind


@dataclass(frozen=True)
class Pointer(Type):
    """An address; `name` is how the source writes the type, where it says more than `ptr`."""

    name: str = ""

    def __str__(self) -> str:
        return self.name or "ptr"

    @property
    def is_text(self) -> bool:
        """Whether the source declares it as a pointer to characters."""
        return self.name.replace("const", "").replace(" ", "") == "char*"


@dataclass(frozen=True)
class Array(Type):
    """`count` elements in a row; a vector register's worth of them if `is_vector`."""

    element: Type
    count: int
    is_vector: bool = False

    def __str__(self) -> str:
        opening, closing = "<>" if self.is_vector else "[]"
        return f"{opening}{self.count} x {self.element}{closing}"


@dataclass(frozen=True)
class Complex(Type):
    """A complex number: two of `element`, the real part first."""

    element: Type
    name: str = ""

    def __str__(self) -> str:
        return self.name or f"_Complex {self.element}"


@dataclass(frozen=True)
class Form:
    """The form of a record whose layout the types of its fields do not give, or which C++ passes by reference.

    `size` and `alignment` are in bytes. `bits`: first bit and number of bits of each field; the number is 0 unless it is a bit
    field. `by_reference`: None if that is not known. `has_gaps`: there may be unnamed bit fields between the fields, or there is
    an empty array; gcc passes a word with one in a general register. `why`: a clause that says why it cannot be passed from
    Python.
    """

    size: int
    alignment: int
    bits: tuple[tuple[int, int], ...]
    why: str
    by_reference: bool | None = False
    in_memory: bool = False
    has_gaps: bool = False


@dataclass(frozen=True)
class Record(Type):
    """A struct or union. `fields` are (name, type); those of IR, which have no names, are `_0`, `_1`, ..."""

    fields: tuple[tuple[str, Type], ...]
    name: str = ""
    packed: bool = False
    form: Form | None = None

    def __str__(self) -> str:
        return self.name or self.spelled_out

    @property
    def spelled_out(self) -> str:
        """The type without its name."""
        inside = ", ".join(str(kind) for _, kind in self.fields)
        return f"<{{{inside}}}>" if self.packed else f"{{{inside}}}"


@dataclass(frozen=True)
class Unsupported(Type):
    """A type that cannot be passed from Python; `why` is a clause that says so. `by_reference`: its address is passed."""

    name: str
    why: str
    by_reference: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Parameter:
    """A parameter; `name` is empty if the source gives none.

    `attributes` are those of LLVM IR, as written. `copied` is the target type of a pointer whose target is passed by
    value (`byval`), `returned` that of a pointer to the memory for the result (`sret`). `is_unset`: callers may leave what
    was in its place.
    """

    type: Type
    name: str = ""
    attributes: tuple[str, ...] = ()
    copied: Type | None = None
    returned: Type | None = None
    is_unset: bool = False

    def __str__(self) -> str:
        kind = f"{self.type} sret({self.returned})" if self.returned else str(self.type)
        kind = f"{kind} byval({self.copied})" if self.copied else kind
        if "(*)" in kind:
            return kind.replace("(*)", f"(*{self.name})", 1)
        joint = "" if kind.endswith(("*", "&")) or not self.name else " "
        return f"{kind}{joint}{self.name}"


@dataclass(frozen=True)
class Signature:
    """What a function takes and returns.

    `convention` is empty for the calling convention of C. `is_c` says that structs are passed as C passes them; LLVM IR
    passes each of their fields like an argument of its own. `clang`: the version of clang that has compiled it, or 0.
    `may_split`: clang counts registers wrongly here, and may have part of a structure in them and the rest on the stack.
    `is_result_unset`: the function may leave what was in the result's place.
    """

    name: str
    returns: Type
    parameters: tuple[Parameter, ...]
    variadic: bool = False
    convention: str = ""
    is_c: bool = False
    clang: int = 0
    may_split: bool = False
    is_result_unset: bool = False

    def __str__(self) -> str:
        listed = [str(parameter) for parameter in self.parameters] + ["..."] * self.variadic
        prefix = f"{self.convention} " if self.convention else ""
        joint = "" if str(self.returns).endswith(("*", "&")) else " "
        return f"{prefix}{self.returns}{joint}{self.name}({', '.join(listed)})"

    @property
    def passed(self) -> tuple[Parameter, ...]:
        """The parameters that a caller passes: all but the pointer for the result."""
        return tuple(parameter for parameter in self.parameters if parameter.returned is None)

    @property
    def result(self) -> Type:
        """The type of the result: the returned one, or that of the memory passed for the result."""
        returned = (parameter.returned for parameter in self.parameters if parameter.returned is not None)
        return next(returned, self.returns)

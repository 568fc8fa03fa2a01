"""The types of the native language: integers, bool, pointers, fixed arrays, functions; structs are in `structs`.

Every type knows its size and alignment in bytes, as the C compiler of x86-64 Linux lays it out.
"""

from __future__ import annotations

from typing import Any


class Type:
    """A type of the language. Types are never changed and compare by structure (structs: by identity).

    No dataclasses here and in what else every start of a runtime imports: making one takes half a millisecond.
    """

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"<native type {self}>"

    @property
    def size(self) -> int:
        """Bytes that a value takes in memory; TypeError for a type without values in memory."""
        raise TypeError(f"{self} has no size")

    @property
    def align(self) -> int:
        """Alignment in bytes; TypeError for a type without values in memory."""
        raise TypeError(f"{self} has no alignment")

    @property
    def is_scalar(self) -> bool:
        """Whether a value of this type fits a register: it can be assigned, passed and returned."""
        return False


class Int(Type):
    """A two's complement integer of 8, 16, 32 or 64 bits; arithmetic wraps around."""

    def __init__(self, bits: int, signed: bool) -> None:
        self.bits = bits
        self.signed = signed

    def __str__(self) -> str:
        return f"{'i' if self.signed else 'u'}{self.bits}"

    @property
    def size(self) -> int:
        return self.bits // 8

    @property
    def align(self) -> int:
        return self.bits // 8

    @property
    def is_scalar(self) -> bool:
        return True

    @property
    def minimum(self) -> int:
        """The least value."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def maximum(self) -> int:
        """The greatest value."""
        return (1 << self.bits - self.signed) - 1

    def holds(self, value: int) -> bool:
        """Whether *value* is one of this type's values."""
        return self.minimum <= value <= self.maximum

    def wrap(self, value: int) -> int:
        """*value* reduced modulo 2**bits to a value of this type."""
        value &= (1 << self.bits) - 1
        return value - (1 << self.bits) if value > self.maximum else value


class Bool(Type):
    """True or False; one byte in memory, 0 or 1."""

    def __str__(self) -> str:
        return "bool"

    @property
    def size(self) -> int:
        return 1

    @property
    def align(self) -> int:
        return 1

    @property
    def is_scalar(self) -> bool:
        return True


class Void(Type):
    """No value: the result type of functions without a result."""

    def __str__(self) -> str:
        return "void"


class _Address(Type):
    @property
    def size(self) -> int:
        return 8

    @property
    def align(self) -> int:
        return 8

    @property
    def is_scalar(self) -> bool:
        return True


class Pointer(_Address):
    """The address of a `target`, of any alignment."""

    def __init__(self, target: Type) -> None:
        self.target = target

    def __str__(self) -> str:
        return f"ptr[{self.target}]"


class Function(_Address):
    """The address of a function that takes `parameters` and returns `result`, called by the convention `cc`."""

    def __init__(self, result: Type, parameters: tuple[Type, ...], cc: str = "c") -> None:
        self.result = result
        self.parameters = parameters
        self.cc = cc

    def __str__(self) -> str:
        return f"{'fn' if self.cc == 'c' else f'fn_{self.cc}'}[{', '.join(map(str, (self.result, *self.parameters)))}]"


class Array(Type):
    """`count` consecutive elements."""

    def __init__(self, element: Type, count: int) -> None:
        self.element = element
        self.count = count

    def __str__(self) -> str:
        return f"array[{self.element}, {self.count}]"

    @property
    def size(self) -> int:
        return self.element.size * self.count

    @property
    def align(self) -> int:
        return self.element.align


class Literal(Type):
    """An integer that has no width yet; it takes the type of its context."""

    def __str__(self) -> str:
        return "an integer literal"


class Null(Type):
    """The type of `null` before its context says which pointer it is."""

    def __str__(self) -> str:
        return "null"


class Named(Type):
    """A type that was written as a string, to be looked up when it is used: `ptr["Node"]`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class _PointerTo:
    def __getitem__(self, target: Any) -> Pointer:
        return Pointer(as_type(target))

    def __repr__(self) -> str:
        return "ptr"


class _ArrayOf:
    def __getitem__(self, arguments: Any) -> Array:
        if not isinstance(arguments, tuple) or len(arguments) != 2:
            raise TypeError("array takes an element type and a length: array[u64, 16]")
        element, count = as_type(arguments[0]), getattr(arguments[1], "value", arguments[1])
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise TypeError(f"the length of an array must be a positive integer, not {count!r}")
        _require_sized(element, "an array's element")
        return Array(element, count)

    def __repr__(self) -> str:
        return "array"


class _FunctionOf:
    def __init__(self, cc: str = "c") -> None:
        self._cc = cc

    def __getitem__(self, arguments: Any) -> Function:
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        result, *parameters = map(as_type, arguments)
        for parameter in parameters:
            if not parameter.is_scalar and not isinstance(parameter, Named):
                raise TypeError(f"a parameter must be an integer, a bool or a pointer, not {parameter}")
        if not result.is_scalar and result != void and not isinstance(result, Named):
            raise TypeError(f"a result must be an integer, a bool, a pointer or void, not {result}")
        return Function(result, tuple(parameters), self._cc)

    def __repr__(self) -> str:
        return "fn" if self._cc == "c" else f"fn_{self._cc}"


def as_type(value: Any) -> Type:
    """The type denoted by *value*: a Type, a name as a string, Python's `bool`, or None for void.

    Raises TypeError for anything else, naming it.
    """
    if isinstance(value, Type):
        return value
    if isinstance(value, str):
        return Named(value)
    if value is bool:
        return bool_
    if value is None:
        return void
    if value is int:
        raise TypeError("int has no width: write i64, u64, u32, ...")
    if value is float:
        raise TypeError("the native language has no floating point: use scaled integers, such as i64")
    if isinstance(value, (_PointerTo, _ArrayOf, _FunctionOf)):
        raise TypeError(f"{value!r} needs type arguments: write {value!r}[...]")
    raise TypeError(f"{_name(value)} is not a type of the native language")


def _name(value: Any) -> str:
    if not isinstance(value, type):
        return repr(value)
    python = value.__module__ == "builtins"
    return f"{value.__name__}, a Python type," if python else f"the class {value.__name__} (without @struct)"


def _require_sized(type_: Type, what: str) -> None:
    if type_ == void or isinstance(type_, (Literal, Null)):
        raise TypeError(f"{what} cannot be {type_}")


u8, u16, u32, u64 = (Int(bits, signed=False) for bits in (8, 16, 32, 64))
i8, i16, i32, i64 = (Int(bits, signed=True) for bits in (8, 16, 32, 64))
bool_ = Bool()
void = Void()
ptr = _PointerTo()
array = _ArrayOf()
fn = _FunctionOf()
fn_preserve_most = _FunctionOf("preserve_most")
LITERAL = Literal()
NULL = Null()

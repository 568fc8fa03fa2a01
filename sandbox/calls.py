"""Calling the functions of a module from Python: typed, checked, and with the GIL released."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Any

from sandbox.types import Floating, Integer, Parameter, Pointer, Signature, Type, Void

_C_INTEGERS: dict[int, Any] = {
    1: ctypes.c_bool, 8: ctypes.c_int8, 16: ctypes.c_int16, 32: ctypes.c_int32, 64: ctypes.c_int64,
}  # fmt: skip
_C_UNSIGNED: dict[int, Any] = {
    1: ctypes.c_bool, 8: ctypes.c_uint8, 16: ctypes.c_uint16, 32: ctypes.c_uint32, 64: ctypes.c_uint64,
}  # fmt: skip
_C_FLOATING: dict[str, Any] = {"float": ctypes.c_float, "double": ctypes.c_double}


class Function:
    """A function of a loaded module, called like a Python function.

    Integers are checked for range; a pointer is an int, None, bytes, a str (its UTF-8, NUL-terminated) or a ctypes
    object (its address). TypeError names function, parameter and value where they do not fit, OverflowError where an
    integer is out of range. The GIL is released while the function runs.
    """

    def __init__(self, signature: Signature, address: int, size: int) -> None:
        self.signature = signature
        self.name = signature.name
        self.address = address
        """The function's first byte."""
        self.size = size
        """In bytes."""
        self._native: Callable[..., Any] | None = None

    def __repr__(self) -> str:
        return f"<Function {self.signature} at {self.address:#x}>"

    def __call__(self, *arguments: Any) -> Any:
        converted = self._converted(arguments)
        if self._native is None:
            self._native = _native(self.signature, self.address)
        return self._native(*converted)

    def _converted(self, arguments: Sequence[Any]) -> list[Any]:
        parameters = self.signature.parameters
        if len(arguments) != len(parameters) and not (self.signature.variadic and len(arguments) > len(parameters)):
            least = "at least " * self.signature.variadic
            raise TypeError(
                f"{self.name}() takes {least}{len(parameters)} argument(s), {len(arguments)} given: {self.signature}"
            )
        converted = [
            convert(value, parameter.type, self._where(index, parameter))
            for index, (value, parameter) in enumerate(zip(arguments, parameters, strict=False))
        ]
        extra = arguments[len(parameters) :]
        return converted + [_convert_extra(value, f"{self.name}() vararg {value!r}") for value in extra]

    def _where(self, index: int, parameter: Parameter) -> str:
        return f"{self.name}() argument {index + 1}" + (f" ({parameter.name})" if parameter.name else "")

    def parse_arguments(self, words: Sequence[str]) -> list[Any]:
        """Python values for arguments written as text, by the signature.

        Integers may be written `10`, `-1`, `0x1f`, or `'a'`; a pointer parameter takes an integer or a text, which is
        passed as a C string. Raises TypeError if the number is wrong, ValueError naming what does not parse.
        """
        parameters = self.signature.parameters
        if len(words) < len(parameters) or (len(words) > len(parameters) and not self.signature.variadic):
            raise TypeError(f"{self.name}() takes {len(parameters)} argument(s), {len(words)} given: {self.signature}")
        named = [
            parse_word(word, parameter.type, self._where(index, parameter))
            for index, (word, parameter) in enumerate(zip(words, parameters, strict=False))
        ]
        return named + [_parse_extra(word) for word in words[len(parameters) :]]


def convert(value: Any, kind: Type, where: str) -> Any:
    """`value` as ctypes takes it for a parameter of type `kind`. Raises TypeError or OverflowError naming `where`."""
    if isinstance(kind, Integer):
        return _integer(value, kind, where)
    if isinstance(kind, Floating):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        raise TypeError(f"{where}: expected a number for {kind}, got {value!r}")
    if isinstance(kind, Pointer):
        return _pointer(value, kind, where)
    raise TypeError(f"{where}: cannot pass a value of type {kind}")


def _integer(value: Any, kind: Integer, where: str) -> int:
    if not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected an integer for {kind}, got {value!r}")
    number = int(value.__index__())
    if not kind.lowest <= number <= kind.highest:
        raise OverflowError(f"{where}: {number} is out of range for {kind} ({kind.lowest}..{kind.highest})")
    return number


def _pointer(value: Any, kind: Type, where: str) -> Any:
    if value is None:
        return None
    if isinstance(value, str):
        return ctypes.c_char_p(value.encode())
    if isinstance(value, bytes):
        return ctypes.c_char_p(value)
    if isinstance(value, (bytearray, memoryview)):
        return (ctypes.c_char * len(value)).from_buffer(value)
    if isinstance(value, Function):
        return ctypes.c_void_p(value.address)
    if isinstance(value, (ctypes.Structure, ctypes.Union)):
        return ctypes.byref(value)
    if isinstance(value, (ctypes.Array, ctypes._Pointer, ctypes._SimpleCData, ctypes._CFuncPtr)):  # type: ignore[attr-defined]
        return value if not _is_number(value) else ctypes.byref(value)
    if hasattr(value, "__index__"):
        return ctypes.c_void_p(_integer(value, Integer(64, name=str(kind)), where))
    raise TypeError(f"{where}: expected an address, bytes, str or ctypes object for {kind}, got {value!r}")


def _is_number(value: Any) -> bool:
    simple = isinstance(value, ctypes._SimpleCData)
    return simple and not isinstance(value, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_wchar_p))


def _convert_extra(value: Any, where: str) -> Any:
    if isinstance(value, float):
        return ctypes.c_double(value)
    if hasattr(value, "__index__"):
        return ctypes.c_int64(_wrapped(_integer(value, Integer(64), where)))
    return _pointer(value, Pointer(), where)


def _wrapped(number: int) -> int:
    return number - (1 << 64) if number >> 63 > 0 else number


def parse_word(word: str, kind: Type, where: str) -> Any:
    """The value that `word` stands for as a `kind`. Raises ValueError naming `where` and the word."""
    if isinstance(kind, Integer):
        number = _parsed_integer(word)
        if number is None:
            raise ValueError(f"{where}: expected an integer for {kind}, got {word!r}")
        return number
    if isinstance(kind, Floating):
        try:
            return float(word)
        except ValueError:
            raise ValueError(f"{where}: expected a number for {kind}, got {word!r}") from None
    if isinstance(kind, Pointer):
        number = _parsed_integer(word)
        return word if number is None else number
    raise ValueError(f"{where}: a value of type {kind} cannot be written as text")


def _parsed_integer(word: str) -> int | None:
    if len(word) == 3 and word[0] == word[2] == "'":
        return ord(word[1])
    try:
        return int(word, 0)
    except ValueError:
        return None


def _parse_extra(word: str) -> Any:
    number = _parsed_integer(word)
    if number is not None:
        return number
    try:
        return float(word)
    except ValueError:
        return word


def c_type(kind: Type) -> Any:
    """The ctypes type of a scalar `kind`; None for void. Raises TypeError if ctypes has none."""
    if isinstance(kind, Void):
        return None
    if isinstance(kind, Integer):
        table = _C_UNSIGNED if kind.signed is False else _C_INTEGERS
        if kind.bits in table:
            return table[kind.bits]
    if isinstance(kind, Floating) and kind.kind in _C_FLOATING:
        return _C_FLOATING[kind.kind]
    if isinstance(kind, Pointer):
        return ctypes.c_void_p
    raise TypeError(f"no ctypes type for {kind}")


def _native(signature: Signature, address: int) -> Callable[..., Any]:
    parameters = [c_type(parameter.type) for parameter in signature.parameters]
    returns = c_type(signature.returns)
    function = ctypes.CFUNCTYPE(returns, *parameters)(address)
    if isinstance(signature.returns, Pointer):
        return lambda *arguments: function(*arguments) or 0
    return function


def is_finite(value: float) -> bool:
    """Whether `value` is a number and not infinite."""
    return math.isfinite(value)

"""From words to what a Python program would call the value: numbers, strings, tuples, arrays."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

from sandbox.memory.pages import read

_MOST = 1 << 20
"""Characters of a string that are read at most."""


class NotPassed:
    """Stands for a value that the compiled function does not use: its callers do not set the register."""

    def __repr__(self) -> str:
        return "<not passed>"

    def __bool__(self) -> bool:
        return False


NOT_PASSED = NotPassed()


class Array(NamedTuple):
    """An array as a function of Numba has it. `shape` in elements, `strides` in bytes; None for what is not passed.

    `data` is the address of the first element. The memory belongs to the program, and may go when the call ends.
    """

    dtype: Any
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    data: int | None

    def asarray(self) -> Any:
        """A numpy array of the same memory. Raises ValueError if a part of its shape, or its address, is not passed."""
        import numpy

        if self.data is None or None in self.shape or None in self.strides:
            raise ValueError(
                f"{self} has parts that the compiled function does not use, so its callers do not pass them"
            )
        sizes = [int(n or 0) for n in self.shape]
        size = math.prod(sizes) * self.dtype.itemsize
        interface = {
            "version": 3, "shape": tuple(sizes), "strides": self.strides, "typestr": self.dtype.str,
            "data": (self.data if size else 0, False), "descr": self.dtype.descr,
        }  # fmt: skip
        return numpy.asarray(type("Memory", (), {"__array_interface__": interface})())


def value_of(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    """The value at `path` of the Numba type `kind`. `words`: by path, as unsigned numbers; None for what is not passed.

    What no Python value can be made of is a dict of its words.
    """
    for name, make in _MAKERS.items():
        if any(base.__name__ == name for base in type(kind).__mro__):
            return make(kind, words, path)
    return {name: word for name, word in words.items() if name == path or name.startswith(f"{path}.")}


def _integer(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    word = words.get(path)
    if word is None:
        return NOT_PASSED
    bits = kind.bitwidth
    value = word & (1 << bits) - 1
    return value - (1 << bits) if kind.signed and value >> bits - 1 else value


def _boolean(_kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    word = words.get(path)
    return NOT_PASSED if word is None else bool(word & 1)


def _float(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    word = words.get(path)
    if word is None:
        return NOT_PASSED
    size, code = kind.bitwidth // 8, {16: "e", 32: "f", 64: "d"}[kind.bitwidth]
    return struct.unpack(code, (word & (1 << 8 * size) - 1).to_bytes(size, "little"))[0]


def _complex(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    parts = [_float(kind.underlying_float, words, f"{path}.{part}") for part in ("real", "imag")]
    return NOT_PASSED if NOT_PASSED in parts else complex(*parts)


def _none(_kind: Any, _words: Mapping[str, int | None], _path: str) -> None:
    return None


def _optional(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    valid = words.get(f"{path}.valid")
    if valid is None:
        return NOT_PASSED
    return value_of(kind.type, words, f"{path}.data") if valid & 1 else None


def _tuple(kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    prefix = "" if f"{path}.f0" not in words and not any(name.startswith(f"{path}.f0.") for name in words) else "f"
    return tuple(value_of(each, words, f"{path}.{prefix}{number}") for number, each in enumerate(kind))


def _array(kind: Any, words: Mapping[str, int | None], path: str) -> Array:
    from numba.np import numpy_support

    dtype = numpy_support.as_dtype(kind.dtype)
    shape = [words.get(f"{path}.shape.{i}") for i in range(kind.ndim)]
    if kind.ndim == 1 and shape[0] is None:
        shape[0] = words.get(f"{path}.nitems")
    strides = [_signed(words.get(f"{path}.strides.{i}")) for i in range(kind.ndim)]
    return Array(
        dtype, tuple(shape), tuple(_derived(kind.layout, shape, strides, dtype.itemsize)), words.get(f"{path}.data")
    )


def _signed(word: int | None) -> int | None:
    return word - (1 << 64) if word is not None and word >> 63 else word


def _derived(layout: str, shape: list[int | None], strides: list[int | None], size: int) -> list[int | None]:
    """The strides, with those that follow from the shape of a contiguous array."""
    inner = 1 if layout == "F" else -1
    if layout not in ("C", "F") or not shape:
        return strides
    derived: list[int | None] = []
    step: int | None = size
    for extent in shape[::inner]:
        derived.append(step)
        step = None if step is None or extent is None else step * extent
    return [mine if mine is not None else given for mine, given in zip(derived[::inner], strides, strict=True)]


def _text(_kind: Any, words: Mapping[str, int | None], path: str) -> Any:
    data, length, kind = (words.get(f"{path}.{field}") for field in ("data", "length", "kind"))
    if data is None or length is None:
        return NOT_PASSED
    kind = 1 if kind is None else kind & 0xFFFFFFFF
    codes = {1: "latin-1", 2: "utf-16-le", 4: "utf-32-le"}
    if kind not in codes:
        return NOT_PASSED
    return read(data, min(length, _MOST) * kind).decode(codes[kind], "replace")


_MAKERS = {
    "Boolean": _boolean, "Integer": _integer, "IntegerLiteral": _integer, "Float": _float, "Complex": _complex,
    "NoneType": _none, "Omitted": _none, "Optional": _optional, "UnicodeType": _text, "BaseTuple": _tuple, "Array": _array,
}  # fmt: skip
"""By the names of Numba's types and their bases."""

"""Values of the types in signatures: their layout in memory on x86-64, and conversion from text, to bytes and back.

LLVM and C agree on the layout. Sizes, offsets and alignments are in bytes.
"""

from __future__ import annotations

import ctypes
import functools
import keyword
import struct
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from sandbox.abi.signatures import Array, Complex, Floating, Integer, Pointer, Record, Type

_FLOATING = {"half": (2, "<e"), "float": (4, "<f"), "double": (8, "<d")}
_OTHER_FLOATING = {"x86_fp80": 16, "fp128": 16, "bfloat": 2, "decimal32": 4, "decimal64": 8, "decimal128": 16}


def size_of(kind: Type) -> int:
    """Bytes from one element of an array of `kind` to the next. Raises TypeError if the layout is not known."""
    return _rounded(_store_size(kind), alignment_of(kind))


def alignment_of(kind: Type) -> int:
    """The alignment of `kind`. Raises TypeError if the layout is not known."""
    if isinstance(kind, Integer):
        return min(_power_of_two(_store_size(kind)), 16)
    if isinstance(kind, Array):
        return _power_of_two(_store_size(kind)) if kind.is_vector else alignment_of(kind.element)
    if isinstance(kind, Complex):
        return alignment_of(kind.element)
    if isinstance(kind, Record):
        natural = 1 if kind.packed else max((alignment_of(field) for _, field in kind.fields), default=1)
        return kind.form.alignment if kind.form else natural
    return _store_size(kind)


def _store_size(kind: Type) -> int:
    if isinstance(kind, Integer):
        return (kind.bits + 7) // 8
    if isinstance(kind, Pointer):
        return 8
    if isinstance(kind, Floating):
        return _FLOATING[kind.kind][0] if kind.kind in _FLOATING else _OTHER_FLOATING[kind.kind]
    if isinstance(kind, Complex):
        return 2 * size_of(kind.element)
    if isinstance(kind, Array):
        return kind.count * (_lane_size(kind.element) if kind.is_vector else size_of(kind.element))
    if isinstance(kind, Record):
        return _record_size(kind)
    raise TypeError(f"the size of type {kind} is not known")


def _lane_size(kind: Type) -> int:
    if isinstance(kind, Integer) and kind.bits % 8:
        raise TypeError(f"vectors of {kind} cannot be converted")
    return _store_size(kind)


def _record_size(kind: Record) -> int:
    if kind.form:
        return kind.form.size
    end = 0
    for offset, _, field in fields_of(kind):
        end = offset + size_of(field)
    return end


def fields_of(kind: Record) -> Iterator[tuple[int, str, Type]]:
    """(offset, name, type) of each field; for a bit field, the offset of the byte where it begins."""
    if kind.form:
        for (start, _), (name, field) in zip(kind.form.bits, kind.fields, strict=True):
            yield start // 8, name, field
        return
    offset = 0
    for name, field in kind.fields:
        offset = offset if kind.packed else _rounded(offset, alignment_of(field))
        yield offset, name, field
        offset += size_of(field)


def _rounded(number: int, step: int) -> int:
    return -(-number // step) * step


def _power_of_two(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def encode(value: Any, kind: Type, where: str) -> bytes:
    """The bytes of `value` as a `kind`, `size_of(kind)` of them.

    Integers and numbers for scalars, an address for a pointer, sequences for arrays, vectors and structs (these also
    take mappings, and bytes of the right length). Raises TypeError or OverflowError beginning with `where`.
    """
    size = size_of(kind)
    if isinstance(value, (bytes, bytearray)) and isinstance(kind, (Array, Record)):
        if len(value) != size:
            raise TypeError(f"{where}: {len(value)} bytes given for {kind}, which has {size}")
        return bytes(value)
    if isinstance(kind, Array):
        return _encode_array(value, kind, where)
    if isinstance(kind, Record) and not kind.form:
        return _encode_record(value, kind, where)
    if isinstance(kind, Floating):
        return _encode_floating(value, kind, where)
    if not isinstance(kind, (Integer, Pointer)):
        raise TypeError(f"{where}: values of type {kind} cannot be converted")
    bits = kind if isinstance(kind, Integer) else Integer(64, False, str(kind))
    number = checked_integer(value, bits, where) & ((1 << bits.bits) - 1)
    return number.to_bytes(size, "little")


def checked_integer(value: Any, kind: Integer, where: str) -> int:
    """`value` as an int that fits `kind`. Raises TypeError or OverflowError beginning with `where`."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected an integer for {kind}, got {value!r}")
    number = int(value.__index__())
    if not kind.lowest <= number <= kind.highest:
        raise OverflowError(f"{where}: {number} is out of range for {kind} ({kind.lowest}..{kind.highest})")
    return number


def checked_number(value: Any, kind: Floating, where: str) -> float:
    """`value` as a float. Raises TypeError or OverflowError beginning with `where`."""
    if isinstance(value, bool) or not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"{where}: expected a number for {kind}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise OverflowError(f"{where}: {value} is out of range for {kind}") from None


def _encode_floating(value: Any, kind: Floating, where: str) -> bytes:
    number = checked_number(value, kind, where)
    if kind.kind == "x86_fp80":
        return bytes(ctypes.c_longdouble(number))
    _check_floating(kind)
    try:
        return struct.pack(_FLOATING[kind.kind][1], number)
    except OverflowError:
        raise OverflowError(f"{where}: {value} is out of range for {kind}") from None


def _check_floating(kind: Floating) -> None:
    if kind.kind not in _FLOATING:
        raise TypeError(f"values of type {kind} cannot be converted")


def _encode_array(value: Any, kind: Array, where: str) -> bytes:
    items = _items(value, kind.count, kind, where)
    parts = [encode(item, kind.element, f"{where}[{i}]") for i, item in enumerate(items)]
    return b"".join(parts).ljust(size_of(kind), b"\0")


def _encode_record(value: Any, kind: Record, where: str) -> bytes:
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in dict(kind.fields)]
        if unknown:
            raise TypeError(f"{where}: {kind} has no field {unknown[0]!r}")
        value = [value.get(name, 0) for name, _ in kind.fields]
    items = _items(value, len(kind.fields), kind, where)
    image = bytearray(size_of(kind))
    for item, (offset, name, field) in zip(items, fields_of(kind), strict=True):
        encoded = encode(item, field, f"{where}.{name}")
        image[offset : offset + len(encoded)] = encoded
    return bytes(image)


def _items(value: Any, count: int, kind: Type, where: str) -> Sequence[Any]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"{where}: expected {count} values for {kind}, got {value!r}")
    if len(value) != count:
        raise TypeError(f"{where}: expected {count} values for {kind}, got {len(value)}: {value!r}")
    return value


def decode(data: bytes | memoryview, kind: Type) -> Any:
    """The Python value of a `kind` at the start of `data`: int, float, or a tuple for arrays, vectors and structs.

    A struct whose fields have names gives a namedtuple. An integer without a known sign is read as signed, `i1` as a
    bool, a pointer as an address.
    """
    if isinstance(kind, Array):
        step = _lane_size(kind.element) if kind.is_vector else size_of(kind.element)
        return tuple(decode(data[i * step :], kind.element) for i in range(kind.count))
    if isinstance(kind, Complex):
        return tuple(decode(data[at:], kind.element) for at in (0, size_of(kind.element)))
    if isinstance(kind, Record):
        return _row(kind)(_fields(data, kind))
    if isinstance(kind, Floating):
        return _decode_floating(data, kind)
    if not isinstance(kind, (Integer, Pointer)):
        raise TypeError(f"values of type {kind} cannot be converted")
    bits, signed = (kind.bits, kind.signed is not False) if isinstance(kind, Integer) else (64, False)
    number = int.from_bytes(data[: _store_size(kind)], "little") & ((1 << bits) - 1)
    if bits == 1:
        return bool(number)
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def _fields(data: bytes | memoryview, kind: Record) -> Iterator[Any]:
    if not kind.form:
        yield from (decode(data[offset:], field) for offset, _, field in fields_of(kind))
        return
    for (start, bits), (_, field) in zip(kind.form.bits, kind.fields, strict=True):
        yield _bit_field(data, start, bits, field) if bits else decode(data[start // 8 :], field)


def _bit_field(data: bytes | memoryview, start: int, bits: int, kind: Type) -> int | bool:
    number = int.from_bytes(data[start // 8 : (start + bits + 7) // 8], "little") >> start % 8 & (1 << bits) - 1
    if isinstance(kind, Integer) and kind.bits == 1:
        return bool(number)
    signed = not isinstance(kind, Integer) or kind.signed is not False
    return number - (1 << bits) if signed and number >> (bits - 1) else number


def is_decodable(kind: Type) -> bool:
    """Whether `decode` has Python values for the type."""
    if isinstance(kind, Array):
        return is_decodable(kind.element) and not (kind.is_vector and getattr(kind.element, "bits", 8) % 8)
    if isinstance(kind, Record):
        return all(is_decodable(field) for _, field in kind.fields)
    if isinstance(kind, Complex):
        return is_decodable(kind.element)
    return isinstance(kind, (Integer, Pointer)) or (
        isinstance(kind, Floating) and kind.kind in (*_FLOATING, "x86_fp80")
    )


@functools.cache
def _row(kind: Record) -> Callable[[Iterable[Any]], tuple[Any, ...]]:
    """The function that makes a tuple of a record's values; a namedtuple's if the fields have names."""
    names = [name for name, _ in kind.fields]
    if not names or names[0] == "_0":
        return tuple
    name = kind.name.rpartition(" ")[2]
    if not name.isidentifier() or keyword.iskeyword(name):  # a C++ template's, for example, or one without a name
        name = "record"
    row = namedtuple(name, names, rename=True)  # type: ignore[misc]
    return cast("Callable[[Iterable[Any]], tuple[Any, ...]]", row._make)


def _decode_floating(data: bytes | memoryview, kind: Floating) -> float:
    if kind.kind == "x86_fp80":
        return ctypes.c_longdouble.from_buffer_copy(bytes(data[:16])).value
    _check_floating(kind)
    size, code = _FLOATING[kind.kind]
    return float(struct.unpack(code, data[:size])[0])


def parse_word(word: str, kind: Type, where: str) -> Any:
    """The Python value of `word` as a `kind`.

    Integers are written `10`, `-1`, `0x1f`, `0o17`, `1_000` or `'a'`; a pointer parameter takes an integer (an
    address), or else the word itself is passed as a C string; structs, arrays and vectors are written as Python tuples
    or lists. With any other `kind` the word's form decides. Raises ValueError beginning with `where`.
    """
    if isinstance(kind, Integer):
        return _integer(word, kind, where)
    if isinstance(kind, Floating):
        try:
            return float(word)
        except ValueError:
            raise ValueError(f"{where}: expected a number for {kind}, got {word!r}") from None
    if isinstance(kind, (Record, Array, Complex)):
        return _sequence(word, kind, where)
    return _guessed(word, allow_number=not isinstance(kind, Pointer))


def _integer(word: str, kind: Integer, where: str) -> int:
    if len(word) == 3 and word[0] == word[2] == "'":
        return ord(word[1])
    if kind.bits == 1 and word.lower() in ("true", "false"):
        return int(word.lower() == "true")
    number = _as_integer(word)
    if number is None:
        raise ValueError(f"{where}: expected an integer for {kind}, got {word!r}")
    return number


def _as_integer(word: str) -> int | None:
    try:
        return int(word, 0)
    except ValueError:
        return int(word) if word.isdecimal() else None


def _sequence(word: str, kind: Type, where: str) -> Any:
    import ast

    try:
        value = ast.literal_eval(word)
    except (ValueError, SyntaxError):
        value = None
    if not isinstance(value, (tuple, list, dict)):
        raise ValueError(f"{where}: expected a value for {kind} such as '(1, 2)', got {word!r}")
    return value


def _guessed(word: str, *, allow_number: bool) -> Any:
    number = _as_integer(word)
    if number is not None:
        return number
    try:
        return float(word) if allow_number else word
    except ValueError:
        return word

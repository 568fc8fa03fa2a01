"""The `format` file of an event: fields, their values in a record, a numpy dtype; a version for readers of trace.dat."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

_FIELD = re.compile(
    r"^\tfield:(.+?)\s*([A-Za-z_]\w*)(\[[^]]*\])?;\toffset:([0-9]+);\tsize:([0-9]+);\tsigned:(\d);$", re.MULTILINE
)
_WIDTH = re.compile(r"(?:__)?(?:u?int|[usx])(8|16|32|64)(?:_t)?")
_SIZES = {"char": 1, "bool": 1, "short": 2, "int": 4, "unsigned": 4, "pid_t": 4, "gfp_t": 4, "enum": 4}
"""Sizes by a word of the type, unless one is `long`; any other type is a word."""
_WORD = 8
_LOC_SIZE = 4
_LONGEST = 1 << 19
"""Bytes of the longest record: those of the largest sub-buffer."""
_ARRAY = re.compile(r"\tfield:((?!__data_loc)[^;]+?) (\w+)\[\];\toffset:(\d+);\tsize:([1-9]\d*);")
_TEXTS = re.compile(r"\tfield:__data_loc char\[\]\[\d+\] (\w+);\toffset:(\d+);\tsize:(\d+);\tsigned:(\d);\n")
_SHORT = re.compile(r"\tfield:s(8|16) (\w+)")
_COMMON = ("common_type", "common_flags", "common_preempt_count", "common_pid")


def size_of(kind: str) -> int:
    """Size of a C type in bytes."""
    words = kind.split()
    if width := next(filter(None, map(_WIDTH.fullmatch, words)), None):
        return int(width[1]) // 8
    if "long" in words or "*" in kind:
        return _WORD
    return next((size for word, size in _SIZES.items() if word in words), _WORD)


@dataclass(frozen=True)
class FieldFormat:
    """A field of a record. `offset` and `size` are in bytes.

    `count`: number of elements of an array; 0 for a plain value, -1 if `size` or the end of the record limits the array.
    """

    name: str
    type: str
    offset: int
    size: int
    signed: bool
    count: int = 0

    @property
    def is_text(self) -> bool:
        """Whether the value is a text or a list of texts."""
        return self.type in ("char", "__data_loc char")

    @property
    def is_number(self) -> bool:
        """Whether it is one number of a size that machines have."""
        return not (self.count or self.type.startswith("__data_loc")) and self.size in (1, 2, 4, 8)

    @property
    def is_array_of_numbers(self) -> bool:
        """Whether it is an array of numbers in the fixed part of the record."""
        return self.count > 0 and not (self.is_text or self.type.startswith("__data_loc"))

    @property
    def element(self) -> int:
        """Size of the value, or of an element of the array, in bytes."""
        if self.type.startswith("__data_loc"):
            return _LOC_SIZE
        if self.count < 0:
            return size_of(self.type)
        return max(self.size // self.count, 1) if self.count else self.size

    def value(self, data: bytes) -> Any:
        """An integer, a text (None if the memory could not be read), or a list of these.

        `data`: a record, starting with its common fields.
        """
        if self.type.startswith("__data_loc"):
            return self._located(data)
        if self.is_text and self.count:
            return text(data[self.offset : self.offset + self.size if self.size else None])
        if self.count:
            end = self.offset + self.size if self.size else len(data)
            starts = range(self.offset, end - self.element + 1, self.element)
            return [self._number(data, start, self.element) for start in starts]
        return self._number(data, self.offset, self.element)

    def _number(self, data: bytes, start: int, size: int) -> int:
        return int.from_bytes(data[start : start + size], "little", signed=self.signed)

    def _located(self, data: bytes) -> Any:
        found = [self._at(data, start) for start in range(self.offset, self.offset + self.size, _LOC_SIZE)]
        return found if self.count > 1 else next(iter(found), None)

    def _at(self, data: bytes, start: int) -> Any:
        word = int.from_bytes(data[start : start + _LOC_SIZE], "little")
        length, offset = word >> 16, word & 0xFFFF
        if self.is_text:
            return text(data[offset : offset + length]) if length else None
        step = size_of(self.type.removeprefix("__data_loc "))
        return [self._number(data, at, step) for at in range(offset, offset + length - step + 1, step)]


class EventFormat(NamedTuple):
    """An event of a trace. `group`: its system; `fields`: without the common fields."""

    group: str
    name: str
    id: int
    fields: tuple[FieldFormat, ...]
    print_fmt: str

    def values(self, data: bytes) -> dict[str, Any]:
        """Field name -> value, for a record that starts with its common fields."""
        return {field.name: field.value(data) for field in self.fields}

    def address(self, name: str, data: bytes) -> int:
        """The value of a field that is an address. Raises ValueError if there is none of this name."""
        found = self.values(data).get(name)
        if not isinstance(found, int):
            raise ValueError(f"the event {self.group}:{self.name} has no address {name}")
        return found

    def addresses(self, name: str, data: bytes) -> list[int]:
        """The value of a field that is an array of addresses. Raises ValueError if there is none of this name."""
        found = self.values(data).get(name)
        if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
            raise ValueError(f"the event {self.group}:{self.name} has no addresses {name}")
        return found

    @property
    def dtype(self) -> dict[str, Any]:
        """The argument of numpy.dtype() for records of this event.

        It has the fields of fixed size; a text of variable length is the 32-bit word with its location.
        """
        plain = [field for field in self.fields if field.size]
        return {
            "names": [*_COMMON, *(field.name for field in plain)],
            "formats": ["<u2", "u1", "u1", "<i4", *map(_numpy_format, plain)],
            "offsets": [0, 2, 3, 4, *(field.offset for field in plain)],
        }


def _numpy_format(field: FieldFormat) -> Any:
    if field.is_text and field.count and not field.type.startswith("__data_loc"):
        return f"S{field.size}"
    one = f"<{'i' if field.signed and not field.type.startswith('__data_loc') else 'u'}{field.element}"
    number = field.size // field.element
    return (one, number) if number > 1 else one


def text(data: bytes) -> str:
    """Decode a text up to its NUL. Bytes that are not UTF-8 become surrogates."""
    return data.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def parse_format(group: str, content: str) -> EventFormat:
    """Parse the content of a `format` file. Raises ValueError if it is not one."""
    name = re.search(r"^name: (.+)$", content, re.MULTILINE)
    number = re.search(r"^ID: (\d{1,10})$", content, re.MULTILINE)
    print_fmt = re.search(r"^print fmt: (.*)\Z", content, re.MULTILINE | re.DOTALL)
    if name is None or number is None or print_fmt is None:
        raise ValueError(f"not the format of an event: {content[:60]!r}")
    fields = (_field(*found) for found in _FIELD.findall(content))
    own = tuple(field for field in fields if field.name not in _COMMON)
    return EventFormat(group, name[1], int(number[1]), own, print_fmt[1].rstrip("\n"))


def _field(kind: str, name: str, brackets: str, offset: str, size: str, signed: str) -> FieldFormat:
    if max(len(offset), len(size)) > len(str(_LONGEST)) or int(offset) + int(size) > _LONGEST:
        raise ValueError(f"the field {name} has offset {offset} and size {size}; no record is so long")
    plain, bracket, rest = kind.partition("[")
    inner = (brackets or bracket + rest).strip("[]")
    count = 0
    if brackets or bracket:
        count = -1
    if plain.startswith("__data_loc"):
        count = max(int(size) // _LOC_SIZE, 1)
    elif re.fullmatch(r"[0-9]{1,6}", inner):
        count = int(inner)
    return FieldFormat(name, plain.strip(), int(offset), int(size), signed == "1", count)


def for_readers(text: str) -> str:
    """Rewrite a `format` file for readers of trace.dat, without changing its meaning: libtraceevent 1.7 does not parse all
    that the kernel writes.

    Arrays get their length; an array of texts becomes one field for each text; the sign of s8 and s16 is computed; characters
    are printed as numbers.
    """
    text = _ARRAY.sub(_with_length, text)
    for found in list(_TEXTS.finditer(text)):
        text = _one_by_one(text, *found.groups()).replace(found[0], _fields(*found.groups()))
    for bits, name in _SHORT.findall(text):
        value = rf"REC->{name}\1"
        signed = f"({value} - {1 << int(bits)} * ({value} / {1 << int(bits) - 1}))"
        text = re.sub(rf"REC->{name}\b(\[\d+\])?", signed, text)
    return text.replace("'%c'", "%d")


def _with_length(found: re.Match[str]) -> str:
    kind, name, offset, size = found.groups()
    count = int(size) // size_of(kind)
    return f"\tfield:{kind} {name}[{count}];\toffset:{offset};\tsize:{size};"


def _fields(name: str, offset: str, size: str, signed: str) -> str:
    return "".join(
        f"\tfield:__data_loc char[] {name}_{index};\toffset:{int(offset) + index * _LOC_SIZE};"
        f"\tsize:{_LOC_SIZE};\tsigned:{signed};\n"
        for index in range(int(size) // _LOC_SIZE)
    )


def _one_by_one(text: str, name: str, *_: str) -> str:
    return re.sub(rf"__get_str\({name}\[(\d+)\]\)", rf"__get_str({name}_\1)", text)

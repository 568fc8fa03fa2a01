"""Rewrites `format` files for readers of trace.dat: libtraceevent 1.7 does not parse all that the kernel writes."""

from __future__ import annotations

import re

_ARRAY = re.compile(r"\tfield:((?!__data_loc)[^;]+?) (\w+)\[\];\toffset:(\d+);\tsize:([1-9]\d*);")
_TEXTS = re.compile(r"\tfield:__data_loc char\[\]\[\d+\] (\w+);\toffset:(\d+);\tsize:(\d+);\tsigned:(\d);\n")
_SHORT = re.compile(r"\tfield:s(8|16) (\w+)")
_SIZES = {"u8": 1, "s8": 1, "x8": 1, "char": 1, "u16": 2, "s16": 2, "x16": 2, "u32": 4, "s32": 4, "x32": 4}
_WORD = 8
_LOC_SIZE = 4


def for_readers(text: str) -> str:
    """Rewrite a `format` file, without changing its meaning.

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
    count = int(size) // _SIZES.get(kind, _WORD)
    return f"\tfield:{kind} {name}[{count}];\toffset:{offset};\tsize:{size};"


def _fields(name: str, offset: str, size: str, signed: str) -> str:
    return "".join(
        f"\tfield:__data_loc char[] {name}_{index};\toffset:{int(offset) + index * _LOC_SIZE};"
        f"\tsize:{_LOC_SIZE};\tsigned:{signed};\n"
        for index in range(int(size) // _LOC_SIZE)
    )


def _one_by_one(text: str, name: str, *_: str) -> str:
    return re.sub(rf"__get_str\({name}\[(\d+)\]\)", rf"__get_str({name}_\1)", text)

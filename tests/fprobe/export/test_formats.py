"""Sizes of array elements in the formats of events (TE-2.4), as trace.dat has them and as its readers get them."""

from __future__ import annotations

import struct

import pytest

from fprobe.export.formats import for_readers, parse_format


def described(*fields: str) -> str:
    """The format of an event with these fields."""
    lines = "".join(f"\tfield:{field}\n" for field in fields)
    return f'name: made\nID: 30\nformat:\n{lines}\nprint fmt: ""\n'


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("int", 4), ("const int", 4), ("unsigned", 4), ("unsigned char", 1), ("short int", 2), ("long", 8),
        ("unsigned long long", 8), ("__u16", 2), ("uint8_t", 1), ("int64_t", 8), ("s32", 4), ("x8", 1), ("bool", 1),
        ("char *", 8), ("enum state", 4), ("gfp_t", 4), ("size_t", 8),
    ],
)  # fmt: skip
def test_an_array_without_a_length_has_elements_of_its_type(kind: str, size: int) -> None:
    text = described(f"{kind} values[];\toffset:8;\tsize:16;\tsigned:1;")
    assert parse_format("g", text).fields[0].element == size
    assert f"\tfield:{kind} values[{16 // size}];" in for_readers(text)


def test_an_array_with_a_length_has_elements_of_its_size() -> None:
    field = parse_format("g", described("struct pair values[3];\toffset:8;\tsize:6;\tsigned:0;")).fields[0]
    assert field.element == 2 and field.value(struct.pack("<8x3H", 1, 2, 3)) == [1, 2, 3]


def test_elements_of_an_array_of_variable_length_have_their_size_and_sign() -> None:
    field = parse_format("g", described("__data_loc __s16[] values;\toffset:8;\tsize:4;\tsigned:1;")).fields[0]
    assert field.value(struct.pack("<8xHH3h", 12, 6, -1, 2, -3)) == [-1, 2, -3]

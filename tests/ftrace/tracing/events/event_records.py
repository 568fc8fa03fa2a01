"""An event and its records, for tests of filters, triggers and histograms."""

from __future__ import annotations

import struct

from ftrace.tracing.events.filters.fields import PlainField

FIELDS = (
    PlainField("unsigned long", "__probe_ip", 8, 8),
    PlainField("s32", "fd", 16, 4, signed=True),
    PlainField("s32", "bl", 20, 4, signed=True),
    PlainField("u32", "x", 24, 4),
    PlainField("u8", "u", 28, 1),
    PlainField("u64", "wide", 29, 8),
    PlainField("s16", "half", 37, 2, signed=True),
    PlainField("u8[3]", "three", 39, 3),
    PlainField("u8[4]", "four", 42, 4),
    PlainField("char[8]", "fixed", 46, 8, signed=True),
    PlainField("__data_loc char[]", "name", 54, 4, signed=True),
    PlainField("__data_loc char[][2]", "names", 58, 8, signed=True),
)
"""Packed as a probe event's."""
SIZE = 66


def record(name: bytes | None = b"", names: bytes = b"", pid: int = 7, **values: int | bytes) -> bytes:
    """A record with these values, the others 0. `name`: None if it could not be read."""
    data = bytearray(SIZE)
    struct.pack_into("<i", data, 4, pid)
    for field in FIELDS:
        value = values.get(field.name, 0)
        if isinstance(value, bytes):
            data[field.offset : field.offset + len(value)] = value
        elif value:
            data[field.offset : field.offset + field.size] = (value & ((1 << 8 * field.size) - 1)).to_bytes(
                field.size, "little"
            )
    for offset, text in ((54, name), (58, names)):
        whole = b"" if text is None else text + b"\0"
        struct.pack_into("<HH", data, offset, len(data), len(whole))
        data += whole
    return bytes(data)

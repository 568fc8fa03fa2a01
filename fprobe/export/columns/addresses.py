"""Columns of addresses as text, made by native code: a program that allocates has a new one at each call."""

from __future__ import annotations

import ctypes
from typing import Any

from sandbox.native import *
from sandbox.native.native_image import NativeImage
from sandbox.process.once import once

_MOST = 18
"""Letters of an address: 0x and 16 digits."""


@native(bounded=False)
def hexadecimal(words: ptr[u64], count: u64, ends: ptr[u32], out: ptr[u8]) -> u64:
    """The words in hexadecimal, one after the other, as `{:#x}` writes them. `ends`: where each ends. Returns their length."""
    at: u64 = 0
    for index in range(count):
        word = words[index]
        out[at] = 0x30
        out[at + 1] = 0x78
        digits: u64 = 1
        while digits < 16 and word >> 4 * digits != 0:
            digits += 1
        at += 2
        for digit in range(digits):
            value = word >> 4 * (digits - 1 - digit) & 15
            out[at] = u8(value + 0x30 if value < 10 else value + 0x57)
            at += 1
        ends[index] = u32(at)
    return at


@once
def _image() -> NativeImage:
    return NativeImage.of(Unit("fprobe-addresses", [hexadecimal], bounded=False))


def texts_of_addresses(words: Any) -> Any:
    """An array of texts, of a pyarrow array of uint64 whose nulls have texts, too."""
    import pyarrow as pa

    count = len(words)
    out, ends = ctypes.create_string_buffer(count * _MOST + 1), (ctypes.c_uint32 * (count + 1))()
    start = words.buffers()[1].address + words.offset * 8
    _image().call("hexadecimal", start, count, ctypes.addressof(ends) + 4, ctypes.addressof(out))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(out)])

"""Guarded copies, at the end of readable memory (HAZARDS 3: a bad pointer is an errno)."""

import ctypes
import mmap

import pytest

from ftrace.core.runtime import runtime

EFAULT, E2BIG, EINVAL = -14, -7, -22
PAGE = mmap.PAGESIZE
MARK = 0xEE


@pytest.fixture(scope="module")
def end():
    """The end of a readable page; the page after it cannot be read."""
    area = mmap.mmap(-1, 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    libc = ctypes.CDLL(None)
    assert libc.mprotect(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE), 0) == 0
    yield start + PAGE
    libc.mprotect(ctypes.c_void_p(start + PAGE), ctypes.c_size_t(PAGE), 3)


def call(name, source, size, room=64):
    """The result, and the destination, which was full of marks."""
    function = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)(
        runtime().image.address(name)
    )
    to = ctypes.create_string_buffer(bytes([MARK]) * room, room)
    result = function(ctypes.addressof(to), source, size)
    return result, to.raw


def expected_text(text, size, room=64):
    kept = text[: size - 1] + b"\0"
    return len(kept), kept + bytes([MARK]) * (room - len(kept))


@pytest.mark.parametrize("length", [*range(20), 31, 40])
def test_a_text_of_any_length_at_any_distance_from_the_end(end, length):
    text = bytes(0x80 + index if index & 1 else 1 + index for index in range(length))
    for distance in range(length + 1, length + 20):
        ctypes.memmove(end - distance, text + b"\0" + b"\xaa" * (distance - length - 1), distance)
        for size in {1, 2, 7, 8, 9, length, length + 1, length + 2, 50} - {0}:
            assert call("ftrace_probe_read_str", end - distance, size) == expected_text(text, size)


@pytest.mark.parametrize("length", range(1, 20))
def test_a_text_without_an_end_is_a_fault_unless_the_destination_is_full(end, length):
    ctypes.memmove(end - length, b"b" * length, length)
    result, to = call("ftrace_probe_read_str", end - length, 50)
    assert (result, to[0]) == (EFAULT, 0)
    assert call("ftrace_probe_read_str", end - length, length) == expected_text(b"b" * length, length)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 16, 33])
def test_a_copy_is_whole_or_zero(end, size):
    data = bytes(range(1, size + 1))
    ctypes.memmove(end - size, data, size)
    assert call("ftrace_probe_read", end - size, size) == (size, data + bytes([MARK]) * (64 - size))
    for beyond in range(1, size):
        assert call("ftrace_probe_read", end - size + beyond, size) == (
            EFAULT,
            bytes(size) + bytes([MARK]) * (64 - size),
        )


def test_sizes_that_are_refused(end):
    assert call("ftrace_probe_read_str", end - 1, 0)[0] == EINVAL
    assert call("ftrace_probe_read_str", end - 1, 65537)[0] == E2BIG
    assert call("ftrace_probe_read", end - 1, 65537)[0] == E2BIG


@pytest.mark.parametrize("offset", [0, 1, 7, 8, PAGE - 17, PAGE - 8, PAGE - 5, PAGE - 1])
def test_a_text_that_goes_on_over_pages(offset):
    area = mmap.mmap(-1, 4 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for length in (2 * PAGE - offset - 1, 2 * PAGE - offset, 2 * PAGE + 3):
        text = bytes(1 + index % 255 for index in range(length))
        ctypes.memmove(start + offset, text + b"\0\xaa", length + 2)
        room = 3 * PAGE
        for size in (length - 9, length, length + 1, room):
            found = call("ftrace_probe_read_str", start + offset, size, room)
            assert found == expected_text(text, size, room)

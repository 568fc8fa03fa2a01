"""Compare text with patterns, for compiled filters. Native.

`text` is a field of `size` bytes, with a 0 at the end of the text unless it fills the field. Text of size 0 could
not be read when the record was made, and matches nothing.
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.x86_64.syscalls import SYS_GETCPU


@native
def text_length(text: ptr[u8], size: u64) -> u64:
    """Bytes before the first 0."""
    length: u64 = 0
    while length < size and text[length] != 0:
        length += 1
    return length


@native
def same_bytes(text: ptr[u8], start: u64, search: ptr[u8], length: u64) -> bool_:
    """Whether the text has `search` at `start`."""
    index: u64 = 0
    while index < length:
        if text[start + index] != search[index]:
            return False
        index += 1
    return True


@native
def match_full(text: ptr[u8], size: u64, search: ptr[u8], length: u64) -> bool_:
    return size != 0 and text_length(text, size) == length and same_bytes(text, 0, search, length)


@native
def match_front(text: ptr[u8], size: u64, search: ptr[u8], length: u64) -> bool_:
    return size != 0 and text_length(text, size) >= length and same_bytes(text, 0, search, length)


@native
def match_end(text: ptr[u8], size: u64, search: ptr[u8], length: u64) -> bool_:
    whole = text_length(text, size)
    return size != 0 and whole >= length and same_bytes(text, whole - length, search, length)


@native
def match_middle(text: ptr[u8], size: u64, search: ptr[u8], length: u64) -> bool_:
    whole = text_length(text, size)
    if size == 0 or whole < length:
        return False
    start: u64 = 0
    while start <= whole - length:
        if same_bytes(text, start, search, length):
            return True
        start += 1
    return False


@native
def class_end(search: ptr[u8], length: u64, start: u64) -> u64:
    """The offset after the class whose `[` is before `start`; 0 if the class is not closed."""
    at: u64 = start
    if at < length and search[at] == 33:  # !
        at += 1
    first: bool_ = True
    while at < length and (first or search[at] != 93):  # ]
        first = False
        is_range = at + 2 < length and search[at + 1] == 45 and search[at + 2] != 93  # -
        at += 3 if is_range else 1
    return at + 1 if at < length else 0


@native
def in_class(search: ptr[u8], start: u64, end: u64, byte: u8) -> bool_:
    """Whether the class from `start` (after its `[`) up to `end` (after its `]`) contains `byte`."""
    at: u64 = start
    inverted = search[at] == 33
    if inverted:
        at += 1
    found: bool_ = False
    while at < end - 1:
        low = search[at]
        high: u8 = low
        if at + 2 < end - 1 and search[at + 1] == 45:
            high = search[at + 2]
            at += 2
        at += 1
        if low <= byte and byte <= high:
            found = True
    return found != inverted


@native
def step_over(search: ptr[u8], length: u64, at: u64, byte: u8) -> u64:
    """If `byte` matches the pattern's element at `at`, which is not `*`: the offset after the element; else 0."""
    element = search[at]
    if element == 63:  # ?
        return at + 1
    if element == 91:  # [
        end = class_end(search, length, at + 1)
        if end != 0:
            return end if in_class(search, at + 1, end, byte) else 0
    if element == 92:  # backslash
        return at + 2 if at + 1 < length and search[at + 1] == byte else 0
    return at + 1 if element == byte else 0


@native
def pattern_is_over(search: ptr[u8], length: u64, at: u64) -> bool_:
    """Whether the rest of the pattern matches the empty text: stars, or a backslash at the end."""
    rest: u64 = at
    while rest < length and search[rest] == 42:
        rest += 1
    return rest >= length or (search[rest] == 92 and rest + 1 == length)


@native
def match_glob(text: ptr[u8], size: u64, search: ptr[u8], length: u64) -> bool_:
    """Match a pattern of `*`, `?`, classes and backslash. After a mismatch, the last star takes one byte more."""
    whole = text_length(text, size)
    if size == 0:
        return False
    at: u64 = 0
    read: u64 = 0
    star: u64 = 0  # offset after the last star, or 0
    taken: u64 = 0  # where the text continues after it
    while read < whole:
        following: u64 = 0
        if at < length and search[at] == 42:
            star = at + 1
            taken = read
            at = star
            continue
        if at < length:
            following = step_over(search, length, at, text[read])
        if following != 0:
            at = following
            read += 1
        elif star != 0:
            taken += 1
            read = taken
            at = star
        else:
            return False
    return pattern_is_over(search, length, at)


@native
def read_cpu(rseq: i64) -> u32:
    """The CPU that the thread is running on. `rseq`: offset of its restartable-sequences area from %fs; 0 if unknown."""
    if rseq != 0:
        # cpu_id is the second word of 32 bits; it is negative before registration.
        cpu = cast(u32, read_fs(cast(u64, rseq)) >> 32)
        if cpu < 0x8000_0000:
            return cpu
    where: array[u32, 2] = zeroed
    syscall(SYS_GETCPU, cast(u64, addressof(where)), 0, 0, 0, 0, 0)
    return where[0]

"""Bit maps, copying, hashing, and the plain part of formatted text."""

from __future__ import annotations

from errno import ENAMETOOLONG

from sandbox.demo.sched import get_current
from sandbox.demo.structures import LOG_SIZE, SeqFile
from sandbox.native import *

FNV_OFFSET, FNV_PRIME = 2166136261, 16777619
GOLDEN_RATIO = 0x9E3779B97F4A7C15
XORSHIFT_MULTIPLIER = 0x2545F4914F6CDD1D
NUL, SLASH, MINUS = 0, ord("/"), ord("-")

seq_put_decimal_ull = extern("seq_put_decimal_ull", fn[void, ptr[SeqFile], u64])
seq_vprintf = extern("seq_vprintf", fn[void, ptr[SeqFile], ptr[u8], ptr[u8]])


# Maps of 64 slots, a bit each.


@native
def alloc_bit(map: ptr[u64]) -> i32:
    """Takes the lowest clear bit of a map; its number, or -1 when all are set."""
    free = ~map[0]
    if free == 0:
        return -1
    nr = trailing_zeros(free)
    map[0] |= cast(u64, 1) << nr
    return cast(i32, nr)


@native
def clear_bit(nr: u64, map: ptr[u64]) -> void:
    map[0] &= ~(cast(u64, 1) << (nr & 63))


@native
def clear_user(to: ptr[u8], n: u64) -> u64:
    """Clears n bytes. Returns 0, the number of bytes not cleared."""
    for i in range(n):
        to[i] = 0
    return 0


@native
def strncpy_from_user(dst: ptr[u8], src: ptr[u8], count: u64) -> i64:
    """Copies a string of less than count bytes, with its NUL; its length, or -ENAMETOOLONG."""
    for i in range(count):
        dst[i] = src[i]
        if src[i] == NUL:
            return cast(i64, i)
    return -ENAMETOOLONG


@native
def hash_name(name: ptr[u8]) -> u64:
    """The hash (FNV-1a) and the length of a path component, which ends at '/' or NUL: length << 32 | hash."""
    hash: u32 = FNV_OFFSET
    length: u64 = 0
    while name[length] != NUL and name[length] != SLASH:
        hash = (hash ^ cast(u32, name[length])) * FNV_PRIME
        length += 1
    return length << 32 | cast(u64, hash)


@native
def csum_partial(buf: ptr[u8], len: u64, sum: u32) -> u32:
    """sum * 31 + byte, over the bytes of buf."""
    for i in range(len):
        sum = sum * 31 + cast(u32, buf[i])
    return sum


@native
def hash_64(hash: u64, value: u64) -> u64:
    return (hash << 9 | hash >> 55) ^ value * GOLDEN_RATIO


@native
def prandom_u32_state(state: ptr[u64]) -> u32:
    """xorshift64*: the upper half of the product is the number."""
    x = state[0]
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    state[0] = x
    return cast(u32, x * XORSHIFT_MULTIPLIER >> 32)


@native
def seq_putc(m: ptr[SeqFile], c: u8) -> void:
    """Appends a character to the text, if it and the final NUL fit."""
    if m.count + 1 < m.size:
        m.buf[m.count] = c
        m.count += 1


@native
def seq_puts(m: ptr[SeqFile], s: ptr[u8]) -> void:
    i: u64 = 0
    while s[i] != NUL:
        seq_putc(m, s[i])
        i += 1


@native
def seq_put_decimal_ll(m: ptr[SeqFile], num: i64) -> void:
    if num < 0:
        seq_putc(m, MINUS)
        num = -num
    seq_put_decimal_ull(m, cast(u64, num))


@native
def vscnprintf(buf: ptr[u8], size: u64, fmt: ptr[u8], args: ptr[u8]) -> i32:
    """The length of the text, which is cut to size - 1 and ends with NUL. size must not be 0."""
    m: SeqFile = zeroed
    m.buf = buf
    m.size = size
    seq_vprintf(addressof(m), fmt, args)
    buf[m.count] = NUL
    return cast(i32, m.count)


@native
def log_store(text: ptr[u8], length: u32) -> void:
    task = get_current()
    first = task.log_count
    for i in range(cast(u64, length)):
        task.log_buf[(first + i) % LOG_SIZE] = text[i]
    task.log_count = first + cast(u64, length)


@native
def vprintk(fmt: ptr[u8], args: ptr[u8]) -> i32:
    text: array[u8, 128] = zeroed
    length = vscnprintf(addressof(text[0]), 128, fmt, args)
    log_store(addressof(text[0]), cast(u32, length))
    return length

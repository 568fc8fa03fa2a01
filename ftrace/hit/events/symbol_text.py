"""Addresses as text at a hit: `symbol+0xoffset/0xsize [module]`, for arguments of the type symstr. Native.

Python publishes the table of names (ftrace.tracing.events.hit.symbol_names). Hits use guarded reads, since a replaced table may
be unmapped during a hit; then the text is the address itself.
"""

from __future__ import annotations

from sandbox.native import *

ENCLOSING = 8
"""The maximum number of symbols that start inside another one."""
MAX_NAME = 512
"""The maximum length of a symbol's and its module's names together, with their NULs, in bytes."""
_DECIMAL = 10
_PLUS, _SLASH, _SPACE, _OPEN, _CLOSE = 43, 47, 32, 91, 93


@struct
class NamedRange(Structure):
    """A symbol: its range, and the addresses of its name and its module's name."""

    start: u64
    end: u64
    name: u64
    module: u64


@struct
class NamedRanges(Structure):
    """The symbols by ascending address."""

    count: u64
    ranges: array[NamedRange, 1]


symbol_names = global_var(u64, 0, name="event_symbol_names")
"""The address of a NamedRanges; 0: no symbols are published."""


@native
def range_at(table: u64, index: u64, to: ptr[NamedRange]) -> u64:
    """Copy a symbol's range. Returns its start; all ones if it cannot be read."""
    place = table + offsetof(NamedRanges, "ranges") + index * sizeof(NamedRange)
    if probe_read(cast(ptr[u8], to), place, sizeof(NamedRange)) < 0:
        return ~cast(u64, 0)
    return to.start


@native
def find_symbol(address: u64, to: ptr[NamedRange]) -> u64:
    """Copy the range of the symbol that contains an address; 0 if there is none."""
    table = load(addressof(symbol_names), "acquire")
    count: u64 = 0
    if table == 0 or probe_read(addressof(count), table, 8) < 0:
        return 0
    low: u64 = 0
    high = count
    while low < high:
        middle = (low + high) >> 1
        if range_at(table, middle, to) <= address:
            low = middle + 1
        else:
            high = middle
    for _step in range(ENCLOSING):
        if low == 0:
            return 0
        low -= 1
        if range_at(table, low, to) <= address and address < to.end:
            return 1
    return 0


@native
def put_hex(to: ptr[u8], at: u64, value: u64) -> u64:
    """Write `0x` and a number's digits. Returns the offset after them."""
    digits: u64 = 1
    while digits < 16 and value >> (digits * 4) != 0:
        digits += 1
    to[at] = 48
    to[at + 1] = 120
    for index in range(digits):
        digit = value >> ((digits - 1 - index) * 4) & 15
        to[at + 2 + index] = cast(u8, digit + 48 if digit < _DECIMAL else digit + 87)
    return at + 2 + digits


@native
def put_name(to: ptr[u8], at: u64, name: u64) -> u64:
    """Copy a name, cut if it is too long. Returns the offset after it."""
    size = probe_read_str(addressof(to[at]), name, MAX_NAME >> 1)
    return at + cast(u64, size) - 1 if size > 0 else at


@native(noinline=True)
def put_symbol(to: ptr[u8], address: u64) -> u64:
    """Write an address as text; `to` has `MAX_NAME + 64` bytes. Returns the length with the NUL. As sprint_symbol()."""
    found: NamedRange = zeroed
    at: u64 = 0
    if find_symbol(address, addressof(found)) == 0:
        at = put_hex(to, 0, address)
    else:
        at = put_name(to, 0, found.name)
        to[at] = _PLUS
        at = put_hex(to, at + 1, address - found.start)
        to[at] = _SLASH
        at = put_hex(to, at + 1, found.end - found.start)
        to[at] = _SPACE
        to[at + 1] = _OPEN
        at = put_name(to, at + 2, found.module)
        to[at] = _CLOSE
        at += 1
    to[at] = 0
    return at + 1


@native(name="event_symbol_text", cc="preserve_most", noinline=True)
def symbol_text(to: ptr[u8], size: u64, address: u64) -> u64:
    """As `put_symbol`; returns 0 and writes nothing if `size` is too small."""
    return put_symbol(to, address) if size >= MAX_NAME + 64 else 0


FUNCTIONS = (symbol_text,)

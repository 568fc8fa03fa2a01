"""Addresses as text at a hit: `symbol+0xoffset/0xsize [module]`, for arguments of the type symstr. Native.

The names are a table that Python publishes (ftrace.events.symbol_names). It is read with guarded reads: one that has been
replaced may be unmapped meanwhile, and then the address itself is the text.
"""

from __future__ import annotations

from sandbox.native import (
    Structure,
    addressof,
    array,
    cast,
    global_var,
    load,
    native,
    offsetof,
    probe_read,
    probe_read_str,
    ptr,
    sizeof,
    struct,
    u8,
    u64,
    zeroed,
)

ENCLOSING = 8
"""How many symbols may start inside another one before its end."""
MAX_NAME = 512
"""Bytes of a symbol's name with its module's, and their NULs."""
_DECIMAL = 10
_PLUS, _SLASH, _SPACE, _OPEN, _CLOSE = 43, 47, 32, 91, 93


@struct
class NamedRange(Structure):
    """A symbol: its range, and where its name and its module's are."""

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
"""The address of a NamedRanges; 0: no symbol is known."""


@native
def range_at(table: u64, index: u64, to: ptr[NamedRange]) -> u64:
    """The start of a symbol, which is copied; all ones if it cannot be read."""
    place = table + offsetof(NamedRanges, "ranges") + index * sizeof(NamedRange)
    if probe_read(cast(ptr[u8], to), place, sizeof(NamedRange)) < 0:
        return ~cast(u64, 0)
    return to.start


@native
def find_symbol(address: u64, to: ptr[NamedRange]) -> u64:
    """Copy the symbol that an address lies in; 0 if there is none."""
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
    """Write `0x` and a number's digits; where the text goes on."""
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
    """Copy a name, which is cut if need be; where the text goes on."""
    size = probe_read_str(addressof(to[at]), name, MAX_NAME >> 1)
    return at + cast(u64, size) - 1 if size > 0 else at


@native(noinline=True)
def put_symbol(to: ptr[u8], address: u64) -> u64:
    """Write the text of an address, for which `to` has `MAX_NAME + 64` bytes; its length with the NUL. sprint_symbol()."""
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
def symbol_text(to: ptr[u8], room: u64, address: u64) -> u64:
    """`put_symbol` where there is room for it; 0 elsewhere."""
    return put_symbol(to, address) if room >= MAX_NAME + 64 else 0


FUNCTIONS = (symbol_text,)

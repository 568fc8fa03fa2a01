"""Writing stubs and patching sites: native, in batches, while other threads run the code (FT-58..62).

A *block* is the sites of one module. Its arrays are indexed by site, in table order:

    sites   u64[]   address of each 5-byte stub
    slots   u64[]   the probe list each site runs, read by its stub
    chosen  u8[]    which sites a call is about

A site that lies in one aligned 8-byte word is switched by a single store; the others go through a breakpoint on their
first byte, in three steps with all cores synced between them.
"""

from __future__ import annotations

from ftrace.x86_64.stubs import (
    ENTRY_POINT,
    SITE_SIZE,
    SLOT,
    STUB_SIZE,
    TO_BODY,
    TO_BODY_BY_CALL,
    TO_ENTRY_SLOW,
    TO_EXIT_SLOW,
    TO_SLOT,
)
from sandbox.native import (
    Structure,
    addressof,
    bool_,
    cast,
    global_var,
    i64,
    load,
    native,
    null,
    ptr,
    store,
    struct,
    u8,
    u32,
    u64,
    void,
    volatile_load,
    volatile_store,
)
from sandbox.signals import ucontext

INT3 = 0xCC
_NOP5 = 0x0000_0044_1F0F
_SITE_MASK = 0xFF_FFFF_FFFF
"""The 5 bytes of a site, as the low end of a little-endian word."""


@struct
class Block(Structure):
    """One module's sites, as the native side sees them."""

    count: u64
    sites: ptr[u64]
    slots: ptr[u64]
    chosen: ptr[u8]
    stubs: ptr[u64]  # each site's stub, 0 if it has none yet
    empty: u64  # the list that no probe is in
    off: u64  # not 0: every site is a NOP, whatever it would run


@native(inline=True)
def bytes_at(address: u64) -> ptr[u8]:
    return cast(ptr[u8], address)


@native(inline=True)
def put_displacement(where: u64, delta: u64, target: u64) -> void:
    """The last 4 bytes of an instruction, at `where`, that refers to `target`."""
    cast(ptr[u32], where + delta)[0] = cast(u32, target - (where + 4))


@native(inline=True)
def put64(address: u64, value: u64) -> void:
    cast(ptr[u64], address)[0] = value


@native
def text_copy(target: u64, source: u64, size: u64) -> void:
    """Copy whole words."""
    index: u64 = 0
    while index < size:
        put64(target + index, cast(ptr[u64], source + index)[0])
        index += 8


@native
def emit_stub(where: u64, delta: u64, template: u64, site: u64, slot: u64, pointers: u64) -> void:
    """Write one stub at `where`; `pointers`: the addresses of exit_slow and entry_slow lie there. Offsets: x86_64.stubs."""
    alias = where + delta
    text_copy(alias, template, SLOT)
    put64(alias, site)
    put_displacement(where + TO_SLOT, delta, slot)
    put_displacement(where + TO_BODY, delta, site + SITE_SIZE)
    put_displacement(where + TO_BODY_BY_CALL, delta, site + SITE_SIZE)
    put_displacement(where + TO_EXIT_SLOW, delta, pointers)
    put_displacement(where + TO_ENTRY_SLOW, delta, pointers + 8)
    put64(alias + SLOT, slot)


@native
def emit_stubs(block: ptr[Block], first: u64, last: u64, where: u64, delta: u64, template: u64, pointers: u64) -> void:
    """Stubs for the sites first..last-1, one behind the other from `where` on."""
    index = first
    address = where
    while index < last:
        emit_stub(address, delta, template, block.sites[index], cast(u64, addressof(block.slots[index])), pointers)
        block.stubs[index] = address + ENTRY_POINT
        address += STUB_SIZE
        index += 1


@native
def choose(block: ptr[Block], bits: ptr[u8]) -> u64:
    """Mark the sites whose bit is set, and only them; how many there are."""
    count: u64 = 0
    for index in range(block.count):
        bit = bits[index >> 3] >> cast(u8, index & 7) & 1
        block.chosen[index] = bit
        count += cast(u64, bit)
    return count


@native
def distinct_lists(block: ptr[Block], found: ptr[u64], room: u64) -> u64:
    """The different lists of the chosen sites, at most `room` of them; how many there are."""
    count: u64 = 0
    last: u64 = 0
    for index in range(block.count):
        probes = block.slots[index]
        if block.chosen[index] == 1 and probes != last:
            last = probes
            seen: u64 = 0
            while seen < count and found[seen] != probes:
                seen += 1
            if seen == count:
                if count == room:
                    return count
                found[count] = probes
                count += 1
    return count


@native
def missing_stub(block: ptr[Block], start: u64) -> u64:
    """The first chosen site from `start` on that has no stub yet; the block's count if there is none."""
    for index in range(start, block.count):
        if block.chosen[index] != 0 and block.stubs[index] == 0:
            return index
    return block.count


@native
def relist(block: ptr[Block], old: u64, new: u64) -> u64:
    """Swap the list of every chosen site that runs `old`; how many there were."""
    swapped: u64 = 0
    for index in range(block.count):
        if block.chosen[index] == 1 and block.slots[index] == old:
            store(addressof(block.slots[index]), new, "release")
            block.chosen[index] = 2
            swapped += 1
    return swapped


@native(inline=True)
def site_word(site: u64) -> u64:
    """The 5 bytes as the CPU would execute them."""
    return cast(u64, volatile_load(cast(ptr[u32], site))) | cast(u64, volatile_load(bytes_at(site + 4))) << 32


@native(inline=True)
def jump_word(site: u64, target: u64) -> u64:
    return 0xE9 | ((target - (site + SITE_SIZE)) & 0xFFFF_FFFF) << 8


@native(inline=True)
def wanted_word(block: ptr[Block], index: u64) -> u64:
    """What the site has to hold: a jump to its stub, or the NOP if no probe is left."""
    if block.slots[index] == block.empty or block.off != 0:
        return _NOP5
    return jump_word(block.sites[index], block.stubs[index])


@native(inline=True)
def expected(block: ptr[Block], index: u64, word: u64) -> bool_:
    if word == _NOP5:
        return True
    return block.stubs[index] != 0 and word == jump_word(block.sites[index], block.stubs[index])


@native
def verify_sites(block: ptr[Block]) -> i64:
    """The first chosen site that holds neither its NOP nor its jump, or -1 (FT-58, pass 1)."""
    for index in range(block.count):
        if block.chosen[index] != 0 and not expected(block, index, site_word(block.sites[index])):
            return cast(i64, index)
    return -1


@native(inline=True)
def in_one_word(site: u64) -> bool_:
    return (site & 7) + SITE_SIZE <= 8


@native
def store_site(alias: u64, value: u64) -> void:
    """Put the 5 bytes into the aligned word around them, in one store."""
    shift = (alias & 7) << 3
    word = cast(ptr[u64], alias & ~cast(u64, 7))
    mask = cast(u64, _SITE_MASK) << shift
    volatile_store(word, volatile_load(word) & ~mask | value << shift)


@native
def poke_words(block: ptr[Block], delta: u64, forced: bool_) -> u64:
    """Switch the chosen sites that allow a single store; the others keep their mark. How many are left."""
    left: u64 = 0
    for index in range(block.count):
        if block.chosen[index] != 0:
            site = block.sites[index]
            word = wanted_word(block, index)
            if site_word(site) == word:
                block.chosen[index] = 0
            elif in_one_word(site) and not forced:
                store_site(site + delta, word)
                block.chosen[index] = 3
            else:
                left += 1
    return left


@native
def poke_step(block: ptr[Block], delta: u64, step: u32) -> void:
    """One step of the breakpoint protocol for the sites still marked: int3, tail, first byte (FT-59)."""
    for index in range(block.count):
        if block.chosen[index] != 0 and block.chosen[index] != 3:
            alias = block.sites[index] + delta
            word = wanted_word(block, index)
            if step == 0:
                volatile_store(bytes_at(alias), INT3)
            elif step == 1:
                tail: u64 = 1
                while tail < SITE_SIZE:
                    volatile_store(bytes_at(alias + tail), cast(u8, word >> (tail << 3)))
                    tail += 1
            else:
                volatile_store(bytes_at(alias), cast(u8, word))


@native
def read_back(block: ptr[Block]) -> i64:
    """The first touched site that does not read, where it runs, as it was written; or -1."""
    for index in range(block.count):
        if block.chosen[index] != 0 and site_word(block.sites[index]) != wanted_word(block, index):
            return cast(i64, index)
    return -1


poking = global_var(u64, 0, name="text_poking")
"""The Block whose sites hold breakpoints just now, or 0."""


@native
def site_index(block: ptr[Block], address: u64) -> u64:
    """Where `address` is in the table of sites; the count if it is none."""
    low: u64 = 0
    high = block.count
    while low < high:
        middle = (low + high) >> 1
        if block.sites[middle] < address:
            low = middle + 1
        else:
            high = middle
    if low < block.count and block.sites[low] == address:
        return low
    return block.count


@native
def go_on(block: ptr[Block], address: u64, context: ptr[ucontext]) -> bool_:
    """Continue as if the new instruction were at `address`, if that is a site of the block."""
    if block == null:
        return False
    index = site_index(block, address)
    if index == block.count:
        return False
    if block.slots[index] == block.empty or block.off != 0:
        context.ip = address + SITE_SIZE
    else:
        context.ip = block.stubs[index]
    return True


@native
def poke_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A thread has hit a site half-way: it goes on as if the new instruction were there (FT-60).

    Between the trap and this the batch may have ended, and others begun: a breakpoint that is gone was one of ours, and
    one that is there belongs to somebody else only if no batch has come or gone while we looked.
    """
    address = context.ip - 1
    block = load(addressof(poking), "acquire")
    while not go_on(cast(ptr[Block], block), address, context):
        now = load(addressof(poking), "acquire")
        if cast(u64, volatile_load(bytes_at(address))) != INT3:
            context.ip = address
            return True
        if now == block:
            return False
        block = now
    return True

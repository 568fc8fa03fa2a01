"""Native code that writes stubs and patches sites, in batches, while other threads run the code.

A *block* is the sites of one module. Its arrays are indexed by site, in table order:

    sites   u64[]   the address of each site
    slots   u64[]   the probe list that each site runs, read by its stub
    stubs   u64[]   the address of each site's stub; 0 if it has none yet

A change is given as a bit mask of sites. `choose` turns it into an array of positions; the following steps touch only those
sites.

A site in one aligned 8-byte word is patched by a single store; others in the stages of ftrace.hit.poke.

Breakpoints stay in patched entries where no jump fits, and at instructions that a jump has absorbed. A thread that hits one
continues at the site's detour, or at the copy of the original instruction (`detour_trap`).
"""

from __future__ import annotations

from ftrace.hit.address_table import Table, look_up
from ftrace.hit.poke import poke_bytes
from ftrace.hit.x86_64.stubs import (
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
from sandbox.native import *
from sandbox.threads.signals import ucontext
from sandbox.x86_64.encoding import INT3, JMP32, NOP5

_NOP5 = int.from_bytes(NOP5, "little")
_AT_ONCE = 512
"""How many stubs are written at a time."""


@struct
class Block(Structure):
    """One module's sites, as the native side sees them."""

    count: u64
    sites: ptr[u64]
    slots: ptr[u64]
    stubs: ptr[u64]
    bits: ptr[u64]
    chosen: ptr[u32]  # the positions of the sites to change, ascending
    nr_chosen: u64
    stub_text: u64  # where the first stub is, or will be
    template: u64  # the stub template
    pointers: u64  # address of the words that hold the addresses of exit_slow and entry_slow
    empty: u64  # the empty list
    off: u64  # not 0: every site is a NOP, whatever its list
    originals: ptr[u64]  # the bytes of each site without probes; null: the NOP
    patched: ptr[u64]  # the bytes of each site with probes, 0 if not known yet; null: a jump to its stub
    owned: ptr[u8]  # how many bytes of each site ftrace writes; null: all
    inner: ptr[u8]  # which of those are breakpoints: a bit for each
    bodies: ptr[u64]  # where a thread continues if the site has no probes any more; null: after the site


@struct
class Move(Structure):
    """A move of all chosen sites with one list to another list."""

    old: u64
    new: u64
    sites: u64  # the number of sites


@native(inline=True)
def bytes_at(address: u64) -> ptr[u8]:
    return cast(ptr[u8], address)


@native(inline=True)
def put_displacement(where: u64, delta: u64, target: u64) -> void:
    """Write the displacement at `where`, the last 4 bytes of an instruction that refers to `target`."""
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
def emit_stub(block: ptr[Block], index: u64, where: u64, delta: u64) -> void:
    """Write the stub of a site at `where`. Offsets: x86_64.stubs."""
    alias = where + delta
    site = block.sites[index]
    slot = cast(u64, addressof(block.slots[index]))
    text_copy(alias, block.template, SLOT)
    put64(alias, site)
    put_displacement(where + TO_SLOT, delta, slot)
    put_displacement(where + TO_BODY, delta, site + SITE_SIZE)
    put_displacement(where + TO_BODY_BY_CALL, delta, site + SITE_SIZE)
    put_displacement(where + TO_EXIT_SLOW, delta, block.pointers)
    put_displacement(where + TO_ENTRY_SLOW, delta, block.pointers + 8)
    put64(alias + SLOT, slot)
    block.stubs[index] = where + ENTRY_POINT


@native
def emit_stubs(block: ptr[Block], delta: u64) -> void:
    """Write stubs for the chosen sites that have none, and for their neighbours."""
    for at in range(block.nr_chosen):
        site = cast(u64, block.chosen[at])
        if block.stubs[site] == 0:
            first = site // _AT_ONCE * _AT_ONCE
            for index in range(first, min(first + _AT_ONCE, block.count)):
                emit_stub(block, index, block.stub_text + index * STUB_SIZE, delta)


@native
def distinct_lists(block: ptr[Block], moves: ptr[Move]) -> u64:
    """Fill in a move for each distinct list of the chosen sites. Returns their number."""
    count: u64 = 0
    last: u64 = 0
    for at in range(block.nr_chosen):
        probes = block.slots[cast(u64, block.chosen[at])]
        if probes != last:
            last = probes
            seen: u64 = 0
            while seen < count and moves[seen].old != probes:
                seen += 1
            if seen == count:
                moves[count].old = probes
                count += 1
    return count


@native
def relist(block: ptr[Block], moves: ptr[Move]) -> u64:
    """Swap the list of every chosen site. Returns how many sites have no stub yet."""
    missing: u64 = 0
    move: u64 = 0
    for at in range(block.nr_chosen):
        index = cast(u64, block.chosen[at])
        if moves[move].old != block.slots[index]:
            move = 0
            while moves[move].old != block.slots[index]:
                move += 1
        store(addressof(block.slots[index]), moves[move].new, "release")
        moves[move].sites += 1
        if block.stubs[index] == 0:
            missing += 1
    return missing


@native(inline=True)
def site_word(site: u64) -> u64:
    """The 5 bytes of a site in the executable view."""
    return cast(u64, volatile_load(cast(ptr[u32], site))) | cast(u64, volatile_load(bytes_at(site + 4))) << 32


@native(inline=True)
def jump_word(site: u64, target: u64) -> u64:
    return JMP32 | ((target - (site + SITE_SIZE)) & 0xFFFF_FFFF) << 8


@native(inline=True)
def owned_size(block: ptr[Block], index: u64) -> u64:
    """The number of bytes of the site that ftrace writes."""
    return SITE_SIZE if block.owned == null else cast(u64, block.owned[index])


@native(inline=True)
def differs(block: ptr[Block], index: u64, word: u64, other: u64) -> bool_:
    """Whether two words differ in the bytes of the site that ftrace writes."""
    return ((word ^ other) & (cast(u64, 1) << (owned_size(block, index) << 3)) - 1) != 0


@native(inline=True)
def original_word(block: ptr[Block], index: u64) -> u64:
    """The bytes of the site without probes."""
    return _NOP5 if block.originals == null else block.originals[index]


@native(inline=True)
def patched_word(block: ptr[Block], index: u64) -> u64:
    """The bytes of the site with probes."""
    return jump_word(block.sites[index], block.stubs[index]) if block.patched == null else block.patched[index]


@native(inline=True)
def is_off(block: ptr[Block], index: u64) -> bool_:
    return block.slots[index] == block.empty or block.off != 0


@native(inline=True)
def wanted_word(block: ptr[Block], index: u64) -> u64:
    """The bytes that the site should hold now."""
    return original_word(block, index) if is_off(block, index) else patched_word(block, index)


@native(inline=True)
def expected(block: ptr[Block], index: u64, word: u64) -> bool_:
    if not differs(block, index, word, original_word(block, index)):
        return True
    return block.stubs[index] != 0 and not differs(block, index, word, patched_word(block, index))


@native(inline=True)
def heads_of(block: ptr[Block], index: u64) -> u64:
    """The bytes of a site at which an instruction begins, a bit for each. While it is patched, those are breakpoints."""
    return 1 if block.inner == null else cast(u64, block.inner[index]) | 1


@native
def choose(block: ptr[Block]) -> i64:
    """Choose the sites whose bit is set. Returns the first that holds neither its NOP nor its jump, or -1."""
    count: u64 = 0
    for word in range((block.count + 63) >> 6):
        bits = block.bits[word]
        while bits != 0:
            index = (word << 6) + trailing_zeros(bits)
            if not expected(block, index, site_word(block.sites[index])):
                return cast(i64, index)
            block.chosen[count] = cast(u32, index)
            count += 1
            bits &= bits - 1
    block.nr_chosen = count
    return -1


@native
def keep_changed(block: ptr[Block]) -> u64:
    """Drop chosen sites that already hold the right bytes. Returns how many are left."""
    left: u64 = 0
    for at in range(block.nr_chosen):
        index = cast(u64, block.chosen[at])
        if differs(block, index, site_word(block.sites[index]), wanted_word(block, index)):
            block.chosen[left] = cast(u32, index)
            left += 1
    block.nr_chosen = left
    return left


@native(inline=True)
def in_one_word(block: ptr[Block], index: u64) -> bool_:
    return (block.sites[index] & 7) + owned_size(block, index) <= 8


@native
def store_site(alias: u64, value: u64, size: u64) -> void:
    """Put the first `size` bytes of `value` into the aligned word around them, in one store."""
    shift = (alias & 7) << 3
    word = cast(ptr[u64], alias & ~cast(u64, 7))
    ours = (cast(u64, 1) << (size << 3)) - 1
    volatile_store(word, volatile_load(word) & ~(ours << shift) | (value & ours) << shift)


@native
def poke_words(block: ptr[Block], delta: u64, forced: bool_) -> u64:
    """Patch the chosen sites that allow a single store. The others stay chosen; returns their number."""
    left: u64 = 0
    for at in range(block.nr_chosen):
        index = cast(u64, block.chosen[at])
        site = block.sites[index]
        if in_one_word(block, index) and not forced:
            store_site(site + delta, wanted_word(block, index), owned_size(block, index))
        else:
            left += 1
    return left


@native
def poke_step(block: ptr[Block], delta: u64, step: u32, forced: bool_) -> void:
    """One stage of ftrace.hit.poke, for the sites that do not allow a single store."""
    for at in range(block.nr_chosen):
        index = cast(u64, block.chosen[at])
        alias = block.sites[index] + delta
        word = wanted_word(block, index)
        if in_one_word(block, index) and not forced:
            continue
        poke_bytes(alias, word, owned_size(block, index), heads_of(block, index), step)


@native
def read_back(block: ptr[Block]) -> i64:
    """The first chosen site whose executable view differs from what was written, or -1."""
    for at in range(block.nr_chosen):
        index = cast(u64, block.chosen[at])
        if differs(block, index, site_word(block.sites[index]), wanted_word(block, index)):
            return cast(i64, index)
    return -1


poking = global_var(u64, 0, name="text_poking")
"""The Block whose chosen sites hold breakpoints at the moment, or 0."""
batches = global_var(u64, 0, name="text_poke_batches")
"""How often a batch has begun or ended."""


@native
def site_index(block: ptr[Block], address: u64) -> u64:
    """The position of the chosen site at `address`; the number of sites if there is none."""
    low: u64 = 0
    high = block.nr_chosen
    while low < high:
        middle = (low + high) >> 1
        if block.sites[cast(u64, block.chosen[middle])] < address:
            low = middle + 1
        else:
            high = middle
    if low < block.nr_chosen and block.sites[cast(u64, block.chosen[low])] == address:
        return cast(u64, block.chosen[low])
    return block.count


@native
def go_on(block: ptr[Block], address: u64, context: ptr[ucontext]) -> bool_:
    """Continue as if the new instruction were at `address`, if that is a chosen site of the block."""
    if block == null:
        return False
    index = site_index(block, address)
    if index == block.count:
        return False
    if not is_off(block, index):
        context.ip = block.stubs[index]
    elif block.bodies == null:
        context.ip = address + SITE_SIZE
    else:
        context.ip = block.bodies[index]
    return True


left_restored = global_var(u64, 0, name="left_text_restored")
"""The address of a word that this process shares with its children (ftrace.core.sites.left_text), or 0."""


@native(inline=True)
def is_being_restored(address: u64) -> bool_:
    """Whether a parent of this process is changing text here, which it has left with it; also if that has just ended."""
    word = cast(ptr[u64], left_restored)
    is_changing = word != null and load(word, "acquire") != 0
    return is_changing or cast(u64, volatile_load(bytes_at(address))) != INT3


@native
def poke_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """A thread has hit a site that is being patched: it continues as if the new instruction were there.

    Since the trap, the batch may have ended, and others may have begun. So a breakpoint that is gone was ours, and one that is
    still there is not ours only if no batch began or ended during this check. It may be one of a parent's.
    """
    address = context.ip - 1
    before = load(addressof(batches), "acquire")
    while not go_on(cast(ptr[Block], load(addressof(poking), "acquire")), address, context):
        gone = cast(u64, volatile_load(bytes_at(address))) != INT3
        signal_fence()
        now = load(addressof(batches), "acquire")
        if gone or is_being_restored(address):
            context.ip = address
            return True
        if now == before:
            return False
        before = now
    return True


detour_table = global_var(u64, 0, name="detour_table")
"""Breakpoints that stay in patched entries -> where a thread that hits one continues."""


@native
def detour_trap(signal: u32, info: u64, context: ptr[ucontext]) -> bool_:
    """The consumer of SIGTRAP. False if the breakpoint is not ours. One that is gone was, and left the table after that."""
    address = context.ip - 1
    to = look_up(cast(ptr[Table], load(addressof(detour_table), "acquire")), address)
    if to == 0 and cast(u64, volatile_load(bytes_at(address))) == INT3:
        return False
    context.ip = address if to == 0 else to
    return True

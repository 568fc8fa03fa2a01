"""Native: jumps to islands (ftrace.hit.x86_64.signal_masks), and SIGTRAP in the sa_mask of actions that are there already.

The code is about to change the threads' masks, so many threads that run it block SIGTRAP: a breakpoint would end the process.
Where a site is not in one aligned word, threads that reach it while it changes loop at a jump to itself. Only where the first
byte is the last of its word is there a breakpoint meanwhile.
"""

from __future__ import annotations

from ftrace.hit.text_poke import store_site
from sandbox.native import *
from sandbox.threads.signals import awaiting_trap, pending_trap, records, ucontext
from sandbox.threads.system_calls import barrier_page, block_signals, process_barrier, set_signal_mask
from sandbox.threads.tasks import ASYNCHRONOUS
from sandbox.x86_64.encoding import INT3
from sandbox.x86_64.syscalls import SYS_GETPID, SYS_MEMBARRIER, SYS_RT_SIGACTION

SIZE = 5
"""Bytes of a site."""
_SYNC_CORE = 1 << 5
_LOOP = 0xFEEB
"""A jump to itself."""
_SIGTRAP = 5
_TRAP = 1 << 4
_SIGNALS = 64
_RESTART, _IGNORE = 0x1000_0000, 1
"""SA_RESTART and SIG_IGN."""
_HANDLER = 2
"""The lowest number that is a handler: below it are SIG_DFL and SIG_IGN."""
WHOLE, LOOPING, STOPPING = range(3)


@struct
class MaskWords(Structure):
    """What the routines know about this process.

    `process`: its number, unlike that of a child that runs in its memory. `in_actions`: bit n - 1: the program has given
    SIGTRAP in the sa_mask of signal n. `offset`: where, from %fs, a thread has its word.
    """

    process: u64
    in_actions: u64
    offset: u64


@struct
class Site(Structure):
    """Where a system call is made, and the first 5 bytes that it shall have."""

    address: u64
    word: u64


signal_dispatch = extern("signal_dispatch", fn[void, u32, u64, ptr[ucontext]])

words = global_var(MaskWords, name="signal_mask_words")
trap_action = global_var(array[u64, 4], name="signal_mask_trap")
"""The kernel's action of SIGTRAP, for children that begin without handlers."""


@native(inline=True)
def way_of(site: u64) -> u64:
    """How a site is written."""
    place = site & 7
    return WHOLE if place <= 8 - SIZE else LOOPING if place < 7 else STOPPING


@native
def begin_site(address: u64, alias: u64, word: u64) -> void:
    way = way_of(address)
    if way == WHOLE:
        store_site(alias, word, SIZE)
    elif way == LOOPING:
        store_site(alias, _LOOP, 2)
    else:
        volatile_store(cast(ptr[u8], alias), cast(u8, INT3))


@native
def continue_site(address: u64, alias: u64, word: u64) -> void:
    """Write the bytes that no thread executes."""
    way = way_of(address)
    first: u64 = SIZE if way == WHOLE else 2 if way == LOOPING else 1
    for offset in range(first, SIZE):
        volatile_store(cast(ptr[u8], alias + offset), cast(u8, word >> (offset << 3)))


@native
def end_site(address: u64, alias: u64, word: u64) -> void:
    way = way_of(address)
    if way == LOOPING:
        store_site(alias, word, 2)
    elif way == STOPPING:
        volatile_store(cast(ptr[u8], alias), cast(u8, word))


@native
def sync() -> void:
    if barrier_page == 0:
        syscall(SYS_MEMBARRIER, _SYNC_CORE, 0, 0, 0, 0, 0)
    else:
        process_barrier()


@native(export=True)
def write_mask_sites(sites: ptr[Site], count: u64, delta: u64) -> void:
    """Write all of them. No handler runs in this thread meanwhile, which could wait for itself."""
    mask = block_signals(ASYNCHRONOUS)
    for index in range(count):
        begin_site(sites[index].address, sites[index].address + delta, sites[index].word)
    sync()
    for index in range(count):
        continue_site(sites[index].address, sites[index].address + delta, sites[index].word)
    sync()
    for index in range(count):
        end_site(sites[index].address, sites[index].address + delta, sites[index].word)
    sync()
    set_signal_mask(mask)


@native
def exchange(signal: u64, action: ptr[u64], old: ptr[u64]) -> i64:
    new = cast(i64, action)
    return syscall(SYS_RT_SIGACTION, cast(i64, signal), new, cast(i64, old), 8, 0, 0)


@native(inline=True)
def are_equal(one: ptr[u64], other: ptr[u64]) -> bool_:
    return one[0] == other[0] and one[1] == other[1] and one[2] == other[2] and one[3] == other[3]


@native(inline=True)
def with_trap(action: ptr[u64], source: ptr[u64], trap: u64) -> void:
    """Copy an action, with `trap` (0 or SIGTRAP's bit) in its mask."""
    for index in range(3):
        action[index] = source[index]
    action[3] = source[3] & ~cast(u64, _TRAP) | trap


@native
def set_trap(signal: u64, trap: u64) -> void:
    """Give the action of a signal `trap` in its mask. An action that the program sets meanwhile wins."""
    actions: array[u64, 12] = zeroed
    known = addressof(actions[0])
    new = addressof(actions[4])
    old = addressof(actions[8])
    if syscall(SYS_RT_SIGACTION, cast(i64, signal), 0, cast(i64, known), 8, 0, 0) != 0:
        return
    with_trap(new, known, trap)
    for _ in range(8):
        if exchange(signal, new, old) != 0 or are_equal(known, old):
            return
        for index in range(4):
            known[index] = new[index]
        with_trap(new, old, trap)  # what this has replaced


@native
def exchange_action(signal: u64, action: ptr[u64], old: ptr[u64]) -> i64:
    """The program sets a signal's action: our handler stays, and passes on what is not ours. -1: our handler is not there."""
    installed: array[u64, 4] = zeroed
    new: array[u64, 4] = zeroed
    record = addressof(records[signal])
    where = cast(i64, addressof(installed[0]))
    syscall(SYS_RT_SIGACTION, cast(i64, signal), 0, where, 8, 0, 0)
    if record.count == 0 or installed[0] != cast(u64, signal_dispatch):
        return -1
    previous = cast(ptr[u64], addressof(record.previous_handler))
    for index in range(4):
        new[index] = action[index] if action != null else previous[index]
    for index in range(4):
        if old != null:
            old[index] = previous[index]
        previous[index] = new[index]
    if signal != _SIGTRAP and action != null:  # whether a system call that it interrupts is made again
        is_restarting = new[1] & _RESTART != 0 or new[0] == _IGNORE
        installed[1] = installed[1] & ~_RESTART | (u64(_RESTART) if is_restarting else u64(0))
        syscall(SYS_RT_SIGACTION, cast(i64, signal), where, 0, 8, 0, 0)
    return 0


@native(export=True)
def begin_masks(offset: u64) -> void:
    """Before any site is written."""
    words.offset = offset
    note_process()


@native(export=True)
def note_process() -> void:
    """In the child of a fork, which has no pending signals, and one thread."""
    store(addressof(pending_trap), 0, "relaxed")
    store(addressof(awaiting_trap), 0, "relaxed")
    words.process = cast(u64, syscall(SYS_GETPID, 0, 0, 0, 0, 0, 0))


@native(export=True)
def take_traps() -> void:
    """No action's mask has SIGTRAP any more; note those that had."""
    action: array[u64, 4] = zeroed
    for number in range(_SIGNALS):
        where = cast(i64, addressof(action[0]))
        is_known = syscall(SYS_RT_SIGACTION, number + 1, 0, where, 8, 0, 0) == 0 and action[0] >= _HANDLER
        if is_known and number + 1 == _SIGTRAP:
            with_trap(addressof(trap_action[0]), addressof(action[0]), 0)
        if is_known and action[3] & _TRAP != 0:
            atomic_or(addressof(words.in_actions), cast(u64, 1) << cast(u64, number))
            set_trap(cast(u64, number + 1), 0)


@native(export=True)
def give_traps() -> void:
    """Undo `take_traps`."""
    noted = atomic_and(addressof(words.in_actions), 0)
    for number in range(_SIGNALS):
        if noted >> cast(u64, number) & 1 != 0:
            set_trap(cast(u64, number + 1), _TRAP)


FUNCTIONS = (exchange_action, begin_masks, write_mask_sites, take_traps, give_traps, note_process)

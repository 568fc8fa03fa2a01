"""Changing code that other threads may be executing, by breakpoints: the protocol of the kernel's text_poke_bp_batch().

A *poke* changes up to 8 bytes. Its *heads* are those at which an instruction begins, of the old code or the new. A batch goes
through three stages, each for all of its pokes, and after each every core is synchronised:

    BREAKPOINTS   an int3 at each head: a thread that comes from now on traps, and is sent on by whoever knows where to
    TAILS         the other bytes, which no thread executes any more
    HEADS         the heads

Sites (ftrace.sites.text_poke) and the jumps of kprobes (kprobes.jump.writing) change so.
"""

from __future__ import annotations

from sandbox.native import (
    Structure,
    addressof,
    bool_,
    cast,
    i64,
    native,
    ptr,
    struct,
    u8,
    u32,
    u64,
    void,
    volatile_load,
    volatile_store,
)
from sandbox.x86_64.encoding import INT3

BREAKPOINTS, TAILS, HEADS = STAGES = range(3)


@struct
class Poke(Structure):
    """A stretch of text that is to change."""

    address: u64  # where it is executed
    alias: u64  # where it can be written
    text: u64  # the new bytes, the first one lowest
    length: u32
    heads: u32  # bit i: byte i is one


@native(inline=True)
def is_due(heads: u64, offset: u64, stage: u32) -> bool_:
    """Whether the byte at this offset changes in this stage."""
    return (heads >> offset & 1 == 0) == (stage == TAILS)


@native(inline=True)
def byte_of(text: u64, offset: u64, stage: u32) -> u8:
    """What it changes to."""
    return cast(u8, INT3) if stage == BREAKPOINTS else cast(u8, text >> (offset << 3))


@native(inline=True)
def poke_bytes(alias: u64, text: u64, size: u64, heads: u64, stage: u32) -> void:
    """One stage of one poke."""
    offset: u64 = 0
    while offset < size:
        if is_due(heads, offset, stage):
            volatile_store(cast(ptr[u8], alias + offset), byte_of(text, offset, stage))
        offset += 1


@native
def is_poked(poke: ptr[Poke], stage: u32) -> bool_:
    """Whether a stage has reached what is executed: a page that a debugger has written to is a copy, which no alias reaches."""
    offset: u64 = 0
    while offset < cast(u64, poke.length):
        due = is_due(cast(u64, poke.heads), offset, stage)
        if due and volatile_load(cast(ptr[u8], poke.address + offset)) != byte_of(poke.text, offset, stage):
            return False
        offset += 1
    return True


@native
def poke_stage(pokes: ptr[Poke], first: u64, end: u64, stage: u32) -> i64:
    """One stage of those in [first, end); the first of them that it has not reached, or -1."""
    missed: i64 = -1
    for index in range(first, end):
        poke = addressof(pokes[index])
        poke_bytes(poke.alias, poke.text, cast(u64, poke.length), cast(u64, poke.heads), stage)
        if missed < 0 and not is_poked(poke, stage):
            missed = cast(i64, index)
    return missed

"""Changing code that other threads may be executing, by breakpoints: the protocol of the kernel's text_poke_bp_batch().

A *poke* changes up to 8 bytes. Its *heads* are the bytes at which an old or a new instruction begins. A batch has three
stages, each for all of its pokes; after each, every core is synchronised:

    BREAKPOINTS   an int3 at each head: a thread that arrives traps, and the owner of the poke sends it to the right address
    TAILS         the other bytes, which no thread executes any more
    HEADS         the heads

Used for sites (ftrace.hit.text_poke) and for the jumps of kprobes (kprobes.jump.jumps).
"""

from __future__ import annotations

from sandbox.native import *
from sandbox.x86_64.encoding import INT3

BREAKPOINTS, TAILS, HEADS = STAGES = range(3)


@struct
class Poke(Structure):
    """A change of up to 8 bytes of text."""

    address: u64  # in the executable view
    alias: u64  # in the writable alias
    text: u64  # the new bytes, the first one lowest
    length: u32
    heads: u32  # bit i: byte i is a head


@native(inline=True)
def is_due(heads: u64, offset: u64, stage: u32) -> bool_:
    """Whether the byte at this offset changes in this stage."""
    return (heads >> offset & 1 == 0) == (stage == TAILS)


@native(inline=True)
def byte_of(text: u64, offset: u64, stage: u32) -> u8:
    """The byte that this stage writes."""
    return cast(u8, INT3) if stage == BREAKPOINTS else cast(u8, text >> (offset << 3))


@native(inline=True)
def poke_bytes(alias: u64, text: u64, size: u64, heads: u64, stage: u32) -> void:
    offset: u64 = 0
    while offset < size:
        if is_due(heads, offset, stage):
            volatile_store(cast(ptr[u8], alias + offset), byte_of(text, offset, stage))
        offset += 1


@native
def is_poked(poke: ptr[Poke], stage: u32) -> bool_:
    """Whether a stage is visible in the executable view. (A page that a debugger has written to is not reached by the alias.)"""
    offset: u64 = 0
    while offset < cast(u64, poke.length):
        due = is_due(cast(u64, poke.heads), offset, stage)
        if due and volatile_load(cast(ptr[u8], poke.address + offset)) != byte_of(poke.text, offset, stage):
            return False
        offset += 1
    return True


@native
def poke_stage(pokes: ptr[Poke], first: u64, end: u64, stage: u32) -> i64:
    """One stage of the pokes [first, end). Returns the first poke that it has not reached, or -1."""
    missed: i64 = -1
    for index in range(first, end):
        poke = addressof(pokes[index])
        poke_bytes(poke.alias, poke.text, cast(u64, poke.length), cast(u64, poke.heads), stage)
        if missed < 0 and not is_poked(poke, stage):
            missed = cast(i64, index)
    return missed
